{{/* What the pods of gateway, prefill and decode have in common. All take {root, role}: what is the
pod's own is of a component, which may be colocated, what is a container's of its role. */}}

{{- define "baton.replicas" -}}
{{- $block := get .root.Values .role -}}
{{- if eq (dig "autoscaling" "mode" "none" $block) "none" }}
replicas: {{ if hasKey $block "replicas" }}{{ int $block.replicas }}{{ else }}{{ ternary 2 1 (eq .role "gateway") }}{{ end }}
{{- end }}
{{- end -}}

{{- define "baton.podMetadata" -}}
{{- $block := get .root.Values .role -}}
labels:
  {{- include "baton.podLabels" . | nindent 2 }}
  {{- with .revision }}
  baton/revision: {{ . | quote }}
  {{- end }}
  {{- with $block.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $annotations := deepCopy $block.podAnnotations -}}
{{- range $role := include "baton.rolesOf" . | fromYamlArray -}}
{{- $own := get $.root.Values $role -}}
{{- if dig "rdma" "enabled" false $own }}{{ $annotations = merge $annotations $own.rdma.annotations }}{{ end -}}
{{- end -}}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "baton.placement" -}}
{{ include "baton.nodes" . }}
{{- $block := get .root.Values .role -}}
{{- if dig "topologySpread" "enabled" false $block }}
topologySpreadConstraints:
  - maxSkew: {{ $block.topologySpread.maxSkew }}
    topologyKey: {{ $block.topologySpread.topologyKey }}
    whenUnsatisfiable: {{ $block.topologySpread.whenUnsatisfiable }}
    {{- if semverCompare ">=1.27.0-0" .root.Capabilities.KubeVersion.Version }}
    matchLabelKeys: [pod-template-hash] # a rollout's old pods do not count
    {{- end }}
    labelSelector:
      matchLabels:
        {{- include "baton.selector" . | nindent 8 }}
        {{- with .revision }}
        baton/revision: {{ . | quote }}
        {{- end }}
{{- end }}
{{- end -}}

{{- define "baton.nodes" -}}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- $block := get .root.Values .role -}}
{{- range $key := list "nodeSelector" "affinity" "priorityClassName" "runtimeClassName" "schedulerName" }}
{{- with get $block $key }}
{{ $key }}:
  {{- if kindIs "string" . }} {{ . }}{{ else }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}
{{- end }}
tolerations:
  {{- with $block.tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- range list "not-ready" "unreachable" }}
  - {key: node.kubernetes.io/{{ . }}, operator: Exists, effect: NoExecute, tolerationSeconds: {{ int $.root.Values.lostNodeS }}}
  {{- end }}
{{- end -}}

{{- define "baton.podSecurity" -}}
{{- $security := .root.Values.security -}}
runAsNonRoot: true
{{- range $key := list "runAsUser" "runAsGroup" "fsGroup" }}
{{- with get $security $key }}
{{ $key }}: {{ int . }}
{{- end }}
{{- end }}
{{- if $security.fsGroup }}
fsGroupChangePolicy: OnRootMismatch # not every file of a checkpoint at every start
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "baton.containerSecurity" -}}
{{- $block := get .root.Values .role | default dict -}}
{{- $rdma := dig "rdma" dict $block -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: {{ dig "readOnlyRootFilesystem" true $block }}
runAsNonRoot: true
capabilities:
  drop: [ALL]
  {{- if and $rdma.enabled $rdma.ipcLock }}
  add: [IPC_LOCK]
  {{- end }}
{{- end -}}

{{/* Only paths and the pod's own name and address: no secret is in an environment. Takes `secrets` too, a
list, where not all that the role reads are mounted. */}}
{{- define "baton.env" -}}
{{- $block := get .root.Values .role -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: HOME
  value: /cache
- name: HF_HOME
  value: /cache/huggingface
{{- $variables := dict "cell" "BATON_CELL_SECRET_FILE" "redis" "BATON_REDIS_FILE" "kv" "BATON_KV_SECRET_FILE" "keys" "BATON_API_KEYS_FILE" "hub" "HF_TOKEN_PATH" }}
{{- range $name, $source := include "baton.secretFiles" . | fromYaml }}
{{- with get $variables $name }}
- name: {{ . }}
  value: /etc/baton/{{ $name }}/{{ $source.file }}
{{- end }}
{{- end }}
{{- if dig "rdma" "enabled" false $block }}
{{- with $block.rdma.env }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- with $block.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Where checkpoints come from, as the source of a volume; empty where there is no such volume.
Takes {root}. */}}
{{- define "baton.modelVolume" -}}
{{- $version := .root.Capabilities.KubeVersion.Version -}}
{{- with .root.Values.modelVolume }}
{{- if and .existingClaim .image.reference }}
{{- fail "modelVolume: existingClaim and image.reference are both set; checkpoints come from one of them" }}
{{- else if .existingClaim -}}
persistentVolumeClaim: {claimName: {{ .existingClaim }}, readOnly: true}
{{- else if .image.reference }}
{{- if semverCompare "<1.31.0-0" $version }}
{{- fail (printf "modelVolume.image: volumes from images need Kubernetes 1.31 or later (feature gate ImageVolume); this is %s" $version) }}
{{- end -}}
image: {reference: {{ .image.reference | quote }}, pullPolicy: {{ .image.pullPolicy }}}
{{- end }}
{{- end }}
{{- end -}}

{{- define "baton.volumeMounts" -}}
{{- $prefix := include "baton.prefix" . -}}
- name: {{ $prefix }}tmp
  mountPath: /tmp
- name: cache
  mountPath: /cache
{{- if ne .role "gateway" }}
- name: {{ $prefix }}shm
  mountPath: /dev/shm
{{- end }}
{{- with include "baton.transferMount" . }}
- name: transfer
  mountPath: {{ . }}
{{- end }}
{{- if include "baton.modelVolume" . }}
- name: models
  mountPath: {{ .root.Values.modelVolume.mountPath }}
  readOnly: true
{{- end }}
{{- range $name, $source := include "baton.secretFiles" . | fromYaml }}
- name: {{ $name }}-secret
  mountPath: /etc/baton/{{ $name }}
  readOnly: true
{{- end }}
{{- with (get .root.Values .role).extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "baton.volumes" -}}
{{- $roles := include "baton.rolesOf" . | fromYamlArray -}}
{{- range $role := $roles }}
- name: {{ include "baton.prefix" (dict "root" $.root "role" $role) }}tmp
  emptyDir: {sizeLimit: 1Gi}
{{- end }}
- name: cache
  {{- if .root.Values.hub.cache.claim }}
  persistentVolumeClaim:
    claimName: {{ include "baton.fullname" .root }}-hub-cache
  {{- else }}
  emptyDir: {sizeLimit: {{ .root.Values.hub.cache.size }}}
  {{- end }}
{{- range $role := without $roles "gateway" }}
- name: {{ include "baton.prefix" (dict "root" $.root "role" $role) }}shm
  emptyDir: {medium: Memory, sizeLimit: {{ (get $.root.Values $role).shmSize }}}
{{- end }}
{{- if include "baton.transferMount" . }}
- name: transfer
  {{- with .root.Values.transfer.hostPath }}
  hostPath: {path: {{ . | quote }}, type: Directory}
  {{- else }}
  emptyDir: {sizeLimit: 1Mi} # sockets
  {{- end }}
{{- end }}
{{- with include "baton.modelVolume" . }}
- name: models
  {{- . | nindent 2 }}
{{- end }}
{{- range $name, $source := include "baton.secretFiles" . | fromYaml }}
- name: {{ $name }}-secret
  secret:
    secretName: {{ $source.secret }}
    defaultMode: 0440
    items: [{key: {{ $source.key }}, path: {{ $source.file }}}]
{{- end }}
{{- with (get .root.Values .role).extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Takes {root, role, port}. A pod is started and ready by /ready, and alive by /health. */}}
{{- define "baton.probes" -}}
{{- $block := get .root.Values .role -}}
{{- $port := .port -}}
{{- range $probe, $path := dict "startup" (ternary "/health" "/ready" (eq .role "gateway")) "readiness" "/ready" "liveness" "/health" }}
{{ $probe }}Probe:
  httpGet: {path: {{ $path }}, port: {{ $port }}}
  {{- toYaml (get $block.probes $probe) | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "baton.lifecycle" -}}
{{- with int (get .root.Values .role).preStopS }}
lifecycle:
  preStop:
    {{- if semverCompare ">=1.30.0-0" $.root.Capabilities.KubeVersion.Version }}
    sleep: {seconds: {{ . }}}
    {{- else }}
    exec: {command: [sleep, {{ . | quote }}]}
    {{- end }}
{{- end }}
{{- end -}}

{{/* Limits and requests; devices are equal in both, as the API wants, and quoted. */}}
{{- define "baton.resources" -}}
{{- $block := get .root.Values .role -}}
{{- $devices := dict -}}
{{- if gt (int (dig "gpu" "count" 0 $block)) 0 }}{{ $_ := set $devices $block.gpu.resource (toString (int $block.gpu.count)) }}{{ end -}}
{{- if dig "rdma" "enabled" false $block }}{{ $_ := set $devices $block.rdma.resource (toString (int $block.rdma.count)) }}{{ end -}}
{{- $requests := deepCopy ($block.resources.requests | default dict) -}}
{{- $limits := deepCopy ($block.resources.limits | default dict) -}}
{{- range $name, $count := $devices }}{{ $_ := set $requests $name $count }}{{ $_ := set $limits $name $count }}{{ end -}}
{{- $all := dict -}}
{{- if $requests }}{{ $_ := set $all "requests" $requests }}{{ end -}}
{{- if $limits }}{{ $_ := set $all "limits" $limits }}{{ end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* One pod at a time: a new one first, or, where GPUs are few, the old one's GPU first. */}}
{{- define "baton.strategy" -}}
{{- $block := get .root.Values .role -}}
{{- $gpus := 0 -}}
{{- range $role := include "baton.rolesOf" . | fromYamlArray }}{{ $gpus = add $gpus (int (dig "gpu" "count" 0 (get $.root.Values $role))) }}{{ end -}}
{{- $surge := ternary (dict "maxSurge" 0 "maxUnavailable" 1) (dict "maxSurge" 1 "maxUnavailable" 0) (gt $gpus 0) -}}
{{- $strategy := $block.strategy | default dict -}}
{{- if eq ($strategy.type | default "RollingUpdate") "Recreate" -}}
type: Recreate
{{- else -}}
{{- toYaml (dict "type" "RollingUpdate" "rollingUpdate" ($strategy.rollingUpdate | default $surge)) -}}
{{- end -}}
{{- end -}}

{{/* Seconds after which a rollout has failed: a pod may take as long to start as its probe allows. */}}
{{- define "baton.deadline" -}}
{{- $longest := 0 -}}
{{- range $role := include "baton.rolesOf" . | fromYamlArray -}}
{{- $startup := (get $.root.Values $role).probes.startup -}}
{{- $longest = max $longest (mul (int $startup.periodSeconds) (int $startup.failureThreshold)) -}}
{{- end -}}
{{- add $longest 60 -}}
{{- end -}}

{{/* The ServiceAccount of a role: the user's, or the chart's. Takes {root, role}. */}}
{{- define "baton.serviceAccount" -}}
{{- (get .root.Values .role).serviceAccountName | default (printf "%s-%s" (include "baton.fullname" .root) .role) -}}
{{- end -}}

{{/* One container. Takes {root, role, image, ports: {name: number}, probePort}. */}}
{{- define "baton.container" -}}
- name: {{ .role }}
  image: {{ include "baton.image" . }}
  imagePullPolicy: {{ .image.pullPolicy }}
  command: [baton]
  args:
    - serve
    - {{ .role }}
    {{- include "baton.flags" . | nindent 4 }}
  env:
    {{- include "baton.env" . | nindent 4 }}
  ports:
    {{- range $port, $number := .ports }}
    - {name: {{ $port }}, containerPort: {{ int $number }}, protocol: TCP}
    {{- end }}
  {{- include "baton.probes" (dict "root" .root "role" .role "port" .probePort) | nindent 2 }}
  {{- include "baton.lifecycle" . | nindent 2 }}
  resources:
    {{- include "baton.resources" . | nindent 4 }}
  securityContext:
    {{- include "baton.containerSecurity" . | nindent 4 }}
  volumeMounts:
    {{- include "baton.volumeMounts" . | nindent 4 }}
{{- end -}}

{{/* What a Deployment's pods are made from. Takes {root, role, containers, revision}. */}}
{{- define "baton.podTemplate" -}}
{{- $block := get .root.Values .role -}}
metadata:
  {{- include "baton.podMetadata" . | nindent 2 }}
spec:
  serviceAccountName: {{ include "baton.serviceAccount" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false # their BATON_... variables would name no setting
  terminationGracePeriodSeconds: {{ include "baton.grace" . }}
  securityContext:
    {{- include "baton.podSecurity" . | nindent 4 }}
  {{- include "baton.placement" . | nindent 2 }}
  {{- $looks := and .root.Values.doctor.initContainer (ne .role "gateway") }}
  {{- if or $looks $block.initContainers }}
  initContainers:
    {{- with $block.initContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- if $looks }}
    {{- range .containers }}
    {{- include "baton.doctorStep" . | nindent 4 }}
    {{- end }}
    {{- end }}
  {{- end }}
  containers:
    {{- range .containers }}
    {{- include "baton.container" . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "baton.volumes" . | nindent 4 }}
{{- end -}}

{{/* What nodes tell a template's pods by from those of the one before: nothing where Kubernetes does it by
itself (1.27). Takes {root, role, containers}. */}}
{{- define "baton.revision" -}}
{{- if and (dig "topologySpread" "enabled" false (get .root.Values .role)) (semverCompare "<1.27.0-0" .root.Capabilities.KubeVersion.Version) -}}
{{- include "baton.podTemplate" . | sha256sum | trunc 10 -}}
{{- end -}}
{{- end -}}

{{/* A whole Deployment. Takes {root, role, containers}. */}}
{{- define "baton.deployment" -}}
{{- $name := printf "%s-%s" (include "baton.fullname" .root) .role -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  labels:
    {{- include "baton.labels" . | nindent 4 }}
spec:
  {{- include "baton.replicas" . | nindent 2 }}
  strategy:
    {{- include "baton.strategy" . | nindent 4 }}
  progressDeadlineSeconds: {{ include "baton.deadline" . }}
  selector:
    matchLabels:
      {{- include "baton.selector" . | nindent 6 }}
  template:
    {{- include "baton.podTemplate" (merge (dict "revision" (include "baton.revision" .)) .) | nindent 4 }}
{{- end -}}
