{{/* Refuses what cannot be said of one role, or cannot work, where both are in one pod. Takes the root. */}}
{{- define "baton.checkColocated" -}}
{{- if .Values.colocated.enabled -}}
{{- if not .Values.prefill.enabled -}}
{{- fail "colocated: it is a prefill and a decode worker in one pod, and prefill.enabled is false" -}}
{{- end -}}
{{- if .Values.autoscaler.advise -}}
{{- fail "autoscaler.advise: it weighs prefill against decode workers, and colocated ones come and go together" -}}
{{- end -}}
{{- range $role := list "prefill" "decode" -}}
{{- $block := get $.Values $role -}}
{{- if ne $block.autoscaling.mode "none" -}}
{{- fail (printf "%s.autoscaling: mode %s: a colocated pod is one of each role, so neither is scaled alone; colocated.replicas are pods" $role $block.autoscaling.mode) -}}
{{- end -}}
{{- if hasKey $block "replicas" -}}
{{- fail (printf "%s.replicas: a colocated pod is one of each role: colocated.replicas says how many" $role) -}}
{{- end -}}
{{- if $.Values.settings.workerId -}}
{{- fail "settings.workerId: the two workers of a colocated pod need names of their own; leave it out, and they are the pod's with the role" -}}
{{- end -}}
{{- range $key := list "strategy" "terminationGracePeriodSeconds" "nodeSelector" "tolerations" "affinity" "priorityClassName" "runtimeClassName" "schedulerName" "podAnnotations" "podLabels" "serviceAccountName" "serviceAccountAnnotations" "initContainers" "extraVolumes" -}}
{{- if get $block $key -}}
{{- fail (printf "%s.%s: prefill and decode are in one pod: say it once, as colocated.%s" $role $key $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
