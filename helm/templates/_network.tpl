{{/* What several NetworkPolicies admit. */}}

{{/* One entry of `egress`: the release's Redis, or the port of another. Takes the root. */}}
{{- define "baton.toRedis" -}}
{{- if .Values.redis.enabled -}}
- ports: [{port: {{ int .Values.redis.port }}, protocol: TCP}]
  to:
    - {{ include "baton.peer" (dict "root" . "role" "redis") }}
{{- else -}}
- ports: [{port: {{ include "baton.redisPort" . }}, protocol: TCP}]
{{- end -}}
{{- end -}}

{{/* One entry of `egress`. Takes the root. */}}
{{- define "baton.toApiServer" -}}
- ports:
    {{- range .Values.networkPolicy.apiServer.ports }}
    - {port: {{ int . }}, protocol: TCP}
    {{- end }}
  {{- with .Values.networkPolicy.apiServer.peers }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* YAML of those components' pods in the other releases of the cell. Takes {root, roles}. */}}
{{- define "baton.peersElsewhere" -}}
{{- $peers := list -}}
{{- range $release := .root.Values.networkPolicy.releases -}}
{{- $labels := dict "app.kubernetes.io/name" $.root.Chart.Name "app.kubernetes.io/instance" $release -}}
{{- $in := list (dict "key" "app.kubernetes.io/component" "operator" "In" "values" $.roles) -}}
{{- $peers = append $peers (dict "podSelector" (dict "matchLabels" $labels "matchExpressions" $in)) -}}
{{- end -}}
{{- toYaml $peers -}}
{{- end -}}

{{/* The pods of a component. Takes {root, role}. */}}
{{- define "baton.peer" -}}
podSelector: {matchLabels: {{ include "baton.selector" . | fromYaml | toJson }}}
{{- end -}}
