{{/* Labels of what Prometheus scraped from the gateways of this release alone: pods of a Deployment
are called <name>-<hash>-<five letters>, and of a long name shorter. */}}
{{- define "baton.ofGateways" -}}
namespace={{ .Release.Namespace | quote }},pod=~"{{ include "baton.fullname" . }}-gateway-[^-]+(-[^-]+)?"
{{- end -}}
