{{/* From values to the command line. */}}

{{/* YAML of one role's settings: the common ones, its own over them, then what the chart knows
better: the role's ports, its device and ranks, its pod's address. Takes {root, role}. */}}
{{- define "baton.settings" -}}
{{- $values := .root.Values -}}
{{- $settings := dict -}}
{{- range $name, $value := $values.settings }}{{ $_ := set $settings $name $value }}{{ end -}}
{{- range $name, $value := (get $values .role).settings }}{{ $_ := set $settings $name $value }}{{ end -}}
{{- $unused := list "port" "adminPort" "topology" -}}
{{- $block := get $values .role -}}
{{- if eq .role "gateway" -}}
{{- $unused = list "workerPort" "transferPort" "probePort" "workerId" "workerAdvertise" "transferAdvertise" -}}
{{- $block = $values.decode -}}
{{- if not $settings.topology }}{{ $_ := set $settings "topology" (ternary "pd" "agg" $values.prefill.enabled) }}{{ end -}}
{{- else -}}
{{- if and (not $settings.tp) (gt (int $block.gpu.count) 1) }}{{ $_ := set $settings "tp" (int $block.gpu.count) }}{{ end -}}
{{- $ofPod := include "baton.prefix" . -}}
{{- if not $settings.workerId }}{{ $_ := set $settings "workerId" (ternary (printf "$(POD_NAME)-%s" .role) "$(POD_NAME)" (ne $ofPod "")) }}{{ end -}}
{{- if and $ofPod (eq .role "decode") -}}
{{- range $port := list "workerPort" "transferPort" "probePort" -}}
{{- if not (hasKey $block.settings $port) }}{{ $_ := set $settings $port (add (int (get $settings $port)) 10) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if not $settings.workerAdvertise }}{{ $_ := set $settings "workerAdvertise" (printf "$(POD_IP):%v" $settings.workerPort) }}{{ end -}}
{{- with include "baton.transferDir" . }}{{ $_ := set $settings "transferDir" . }}{{ end -}}
{{- if not $settings.transferAdvertise }}{{ $_ := set $settings "transferAdvertise" (printf "$(POD_IP):%v" $settings.transferPort) }}{{ end -}}
{{- end -}}
{{- if not $settings.device }}{{ $_ := set $settings "device" (ternary "cuda" "cpu" (gt (int $block.gpu.count) 0)) }}{{ end -}}
{{- if and $values.redis.existingUrl (not $values.redis.existingSecret) }}{{ $_ := set $settings "redis" $values.redis.existingUrl }}{{ end -}}
{{- range $unused }}{{ $_ := unset $settings . }}{{ end -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* Where the workers of a node meet, in each of their pods, or those of a colocated pod: a socket's
name there says where it is, so it is the same in all. Takes {root, role}. */}}
{{- define "baton.transferDir" -}}
{{- $mount := include "baton.transferMount" . -}}
{{- $mount }}{{ if and $mount (not .root.Values.transfer.hostPath) }}/kv{{ end -}}
{{- end -}}

{{/* The volume that it is in. An emptyDir is root's and open to the group; a folder that the first
worker makes in it is the workers' own. Takes {root, role}. */}}
{{- define "baton.transferMount" -}}
{{- if ne .role "gateway" -}}
{{- if .root.Values.transfer.hostPath }}/run/baton-kv{{ else if .root.Values.colocated.enabled }}/run/baton{{ end -}}
{{- end -}}
{{- end -}}

{{/* The container's args after `serve ROLE`. Takes {root, role}. */}}
{{- define "baton.flags" -}}
{{- $args := list -}}
{{- range $name, $value := include "baton.settings" . | fromYaml -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $text := ternary $value (toJson $value) (kindIs "string" $value) -}}
{{- $args = append $args (printf "--%s=%s" (kebabcase $name) $text) -}}
{{- end -}}
{{- end -}}
{{- toYaml (concat $args (get .root.Values .role).extraArgs) -}}
{{- end -}}

{{/* YAML of where a role finds its models. Takes settings. */}}
{{- define "baton.models" -}}
{{- $models := list (.model | default "demo") -}}
{{- range splitList "," (.moreModels | default "") }}{{ with trim . }}{{ $models = append $models (splitList "=" . | last) }}{{ end }}{{ end -}}
{{- toYaml $models -}}
{{- end -}}

{{/* Whether a role fetches a model from the hub: owner/name. Takes settings. */}}
{{- define "baton.usesHub" -}}
{{- range include "baton.models" . | fromYamlArray }}{{ if regexMatch "^[\\w][\\w.-]*/[\\w][\\w.-]*$" . }}true{{ end }}{{ end -}}
{{- end -}}

{{/* A model that no pod could find is refused: demo, owner/name, or a path below a mounted volume.
Takes {root, role, settings}. */}}
{{- define "baton.checkModel" -}}
{{- $mounts := list -}}
{{- if include "baton.modelVolume" . }}{{ $mounts = append $mounts .root.Values.modelVolume.mountPath }}{{ end -}}
{{- range (get .root.Values .role).extraVolumeMounts }}{{ $mounts = append $mounts .mountPath }}{{ end -}}
{{- range $at, $model := include "baton.models" .settings | fromYamlArray -}}
{{- $mounted := false -}}
{{- range $mounts }}{{ if hasPrefix (printf "%s/" (trimSuffix "/" .)) $model }}{{ $mounted = true }}{{ end }}{{ end -}}
{{- $drawn := and (eq $at 0) (dig "randomWeights" false $.settings) -}}
{{- if not (or $mounted (eq $model "demo") (include "baton.usesHub" (dict "model" $model)) $drawn) -}}
{{- fail (printf "%s: settings.%s is %s: neither demo, nor owner/name of the hub, nor a path below a mounted volume (modelVolume, extraVolumeMounts)" $.role (ternary "model" "moreModels" (eq $at 0)) $model) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The name of settings.model that clients use and workers register under. Takes settings. */}}
{{- define "baton.servedName" -}}
{{- $model := .model | default "demo" -}}
{{- .servedModelName | default (ternary (base $model) $model (hasPrefix "/" $model)) -}}
{{- end -}}

{{/* Port of the OTLP endpoint. Takes settings. */}}
{{- define "baton.otlpPort" -}}
{{- $url := urlParse .otlpEndpoint -}}
{{- regexFind "[0-9]+$" (regexFind ":[0-9]+$" $url.host) | default (ternary "443" "80" (eq $url.scheme "https")) -}}
{{- end -}}

{{/* Port of a Redis that is not ours: its URL's, unless only a Secret knows the URL. */}}
{{- define "baton.redisPort" -}}
{{- $named := dict -}}
{{- if and .Values.redis.existingUrl (not .Values.redis.existingSecret) }}{{ $named = urlParse .Values.redis.existingUrl }}{{ end -}}
{{- regexFind "[0-9]+$" (regexFind ":[0-9]+$" ($named.host | default "")) | default (int .Values.networkPolicy.redisPort) -}}
{{- end -}}

{{/* Seconds a pod needs to end: wait, drain, last words (the gateway's 5 s, a worker's 2 s), of the
container that takes longest. */}}
{{- define "baton.grace" -}}
{{- $root := .root -}}
{{- $needed := 0 -}}
{{- range $role := include "baton.rolesOf" . | fromYamlArray -}}
{{- $settings := include "baton.settings" (dict "root" $root "role" $role) | fromYaml -}}
{{- $needed = max $needed (add (int (get $root.Values $role).preStopS) (ceil ($settings.drainS | default 30) | int) 10) -}}
{{- end -}}
{{- $given := int (get $root.Values .role).terminationGracePeriodSeconds -}}
{{- if and $given (lt $given (int $needed)) -}}
{{- fail (printf "%s.terminationGracePeriodSeconds is %d: stopping takes up to %d s (preStopS + drainS + 10)" .role $given $needed) -}}
{{- end -}}
{{- $given | default $needed -}}
{{- end -}}
