{{/* Names and labels. */}}

{{- define "baton.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 45 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 45 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 45 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What selects a component's pods; never changes. Takes {root, role}. */}}
{{- define "baton.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end -}}

{{/* YAML of the components whose pods are Baton's own processes. Takes the root. */}}
{{- define "baton.components" -}}
{{- $workers := ternary (list "prefill" "decode") (list "decode") .Values.prefill.enabled -}}
{{- if .Values.colocated.enabled }}{{ $workers = list "colocated" }}{{ end -}}
{{- toYaml (concat (list "gateway") $workers) -}}
{{- end -}}

{{/* YAML of the processes in a component's pod, each a container. Takes {role}, the component. */}}
{{- define "baton.rolesOf" -}}
{{- toYaml (ternary (list "prefill" "decode") (list .role) (eq .role "colocated")) -}}
{{- end -}}

{{/* What is of one container alone is called by its role where a pod has two. Takes {root, role}. */}}
{{- define "baton.prefix" -}}
{{- if and .root.Values.colocated.enabled (has .role (list "prefill" "decode")) }}{{ .role }}-{{ end -}}
{{- end -}}

{{/* Labels of a pod. No version: a new chart alone restarts nothing. Takes {root, role}. */}}
{{- define "baton.podLabels" -}}
{{ include "baton.selector" . }}
{{- if has .role (list "prefill" "decode") }}
baton/role: {{ .role }}
{{- end }}
{{- end -}}

{{/* Labels of every object. Takes {root, role}. */}}
{{- define "baton.labels" -}}
{{ include "baton.podLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Takes {root, image}. */}}
{{- define "baton.image" -}}
{{- $tag := .image.tag | default .root.Chart.AppVersion -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository $tag -}}
{{- end -}}
{{- end -}}

{{/* The Secrets the processes read: the user's, or the one that the hook makes. */}}
{{- define "baton.madeSecret" -}}
{{- include "baton.fullname" . }}-cell
{{- end -}}

{{- define "baton.makesSecret" -}}
{{- if or (not .Values.cellSecret.existingSecret) (and .Values.redis.enabled (not .Values.redis.existingSecret)) -}}
true
{{- end -}}
{{- end -}}

{{/* YAML of the secret texts a role reads: name -> Secret, its key, and the file's name, under
/etc/baton/name. Takes {root, role}; also `secrets`, the names of those wanted, if not all are. */}}
{{- define "baton.secretFiles" -}}
{{- $values := .root.Values -}}
{{- $made := include "baton.madeSecret" .root -}}
{{- $files := dict "cell" (dict "secret" ($values.cellSecret.existingSecret | default $made) "key" (ternary $values.cellSecret.key "cell-secret" (ne $values.cellSecret.existingSecret "")) "file" "cell-secret") -}}
{{- if $values.redis.existingSecret -}}
{{- $_ := set $files "redis" (dict "secret" $values.redis.existingSecret "key" "url" "file" "url") -}}
{{- else if $values.redis.enabled -}}
{{- $_ := set $files "redis" (dict "secret" $made "key" "redis-url" "file" "url") -}}
{{- end -}}
{{- if $values.redis.caSecret -}}
{{- $_ := set $files "redis-ca" (dict "secret" $values.redis.caSecret "key" "ca.crt" "file" "ca.crt") -}}
{{- end -}}
{{- if and (eq .role "gateway") $values.kvSecret.existingSecret -}}
{{- $_ := set $files "kv" (dict "secret" $values.kvSecret.existingSecret "key" $values.kvSecret.key "file" "kv-secret") -}}
{{- end -}}
{{- if and (eq .role "gateway") $values.apiKeys.existingSecret -}}
{{- $_ := set $files "keys" (dict "secret" $values.apiKeys.existingSecret "key" $values.apiKeys.key "file" "keys.toml") -}}
{{- end -}}
{{- if $values.hub.tokenSecret -}}
{{- $_ := set $files "hub" (dict "secret" $values.hub.tokenSecret "key" $values.hub.tokenKey "file" "token") -}}
{{- end -}}
{{- range $name := keys $files }}{{ if and (hasKey $ "secrets") (not (has $name $.secrets)) }}{{ $_ := unset $files $name }}{{ end }}{{ end -}}
{{- toYaml $files -}}
{{- end -}}
