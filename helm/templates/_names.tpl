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

{{/* The Secrets the processes read: the chart's own, or the user's. */}}
{{- define "baton.redisSecret" -}}
{{- if .Values.redis.existingSecret -}}
{{- .Values.redis.existingSecret -}}
{{- else if .Values.redis.enabled -}}
{{- include "baton.fullname" . }}-redis
{{- end -}}
{{- end -}}

{{- define "baton.kvSecret" -}}
{{- .Values.kvSecret.existingSecret | default (printf "%s-kv" (include "baton.fullname" .)) -}}
{{- end -}}

{{/* A random text under `key` of our Secret `name`: the one in the cluster, else a new one, and
within one rendering always the same. Takes {root, name, key}. */}}
{{- define "baton.generated" -}}
{{- $values := .root.Values -}}
{{- if not (hasKey $values "generated") -}}
{{- $_ := set $values "generated" dict -}}
{{- end -}}
{{- if not (hasKey $values.generated .name) -}}
{{- $found := dig "data" .key "" (lookup "v1" "Secret" .root.Release.Namespace .name | default dict) -}}
{{- $_ := set $values.generated .name (ternary ($found | b64dec) (randAlphaNum 40) (ne $found "")) -}}
{{- end -}}
{{- get $values.generated .name -}}
{{- end -}}

{{- define "baton.redisPassword" -}}
{{- if and .Values.redis.enabled (not .Values.redis.existingSecret) -}}
{{- include "baton.generated" (dict "root" . "name" (include "baton.redisSecret" .) "key" "password") -}}
{{- end -}}
{{- end -}}

{{- define "baton.kvSalt" -}}
{{- if not .Values.kvSecret.existingSecret -}}
{{- include "baton.generated" (dict "root" . "name" (include "baton.kvSecret" .) "key" .Values.kvSecret.key) -}}
{{- end -}}
{{- end -}}
