{{/* An init step: `baton doctor` looks at what a worker will find, with its flags, its devices and its
volumes. It asks for what the worker asks for, so the pod asks for no more; of its secrets it has the
hub's token alone. Takes {root, role, image}. */}}
{{- define "baton.doctorStep" -}}
{{- $step := merge (dict "secrets" (list "hub")) . -}}
- name: {{ include "baton.prefix" . }}doctor
  image: {{ include "baton.image" . }}
  imagePullPolicy: {{ .image.pullPolicy }}
  command: [baton]
  args:
    - doctor
    - --worker={{ .role }}
    {{- include "baton.flags" . | nindent 4 }}
  env:
    {{- include "baton.env" $step | nindent 4 }}
  resources:
    {{- include "baton.resources" . | nindent 4 }}
  securityContext:
    {{- include "baton.containerSecurity" . | nindent 4 }}
  volumeMounts:
    {{- include "baton.volumeMounts" $step | nindent 4 }}
{{- end -}}
