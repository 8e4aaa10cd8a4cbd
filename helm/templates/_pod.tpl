{{/* What the pods of gateway, prefill and decode have in common. All take {root, role}. */}}

{{- define "baton.replicas" -}}
{{- $block := get .root.Values .role -}}
{{- if eq $block.autoscaling.mode "none" }}
replicas: {{ if hasKey $block "replicas" }}{{ int $block.replicas }}{{ else }}{{ ternary 2 1 (eq .role "gateway") }}{{ end }}
{{- end }}
{{- end -}}

{{- define "baton.podMetadata" -}}
{{- $block := get .root.Values .role -}}
labels:
  {{- include "baton.podLabels" . | nindent 2 }}
  {{- with $block.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $annotations := deepCopy $block.podAnnotations -}}
{{- if dig "rdma" "enabled" false $block }}{{ $annotations = merge $annotations $block.rdma.annotations }}{{ end -}}
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

{{/* Only paths and the pod's own name and address: no secret is in an environment. */}}
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
- name: {{ get $variables $name }}
  value: /etc/baton/{{ $name }}/{{ $source.file }}
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

{{- define "baton.volumeMounts" -}}
- name: tmp
  mountPath: /tmp
- name: cache
  mountPath: /cache
{{- if ne .role "gateway" }}
- name: shm
  mountPath: /dev/shm
{{- end }}
{{- if include "baton.transferDir" . }}
- name: transfer
  mountPath: {{ include "baton.transferDir" . }}
{{- end }}
{{- if .root.Values.modelVolume.existingClaim }}
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
- name: tmp
  emptyDir: {sizeLimit: 1Gi}
- name: cache
  {{- if .root.Values.hub.cache.claim }}
  persistentVolumeClaim:
    claimName: {{ include "baton.fullname" .root }}-hub-cache
  {{- else }}
  emptyDir: {sizeLimit: {{ .root.Values.hub.cache.size }}}
  {{- end }}
{{- if ne .role "gateway" }}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ (get .root.Values .role).shmSize }}}
{{- end }}
{{- if include "baton.transferDir" . }}
- name: transfer
  hostPath: {path: {{ .root.Values.transfer.hostPath | quote }}, type: Directory}
{{- end }}
{{- with .root.Values.modelVolume.existingClaim }}
- name: models
  persistentVolumeClaim: {claimName: {{ . }}, readOnly: true}
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
{{- $surge := ternary (dict "maxSurge" 0 "maxUnavailable" 1) (dict "maxSurge" 1 "maxUnavailable" 0) (gt (int (dig "gpu" "count" 0 $block)) 0) -}}
{{- $strategy := $block.strategy | default dict -}}
{{- if eq ($strategy.type | default "RollingUpdate") "Recreate" -}}
type: Recreate
{{- else -}}
{{- toYaml (dict "type" "RollingUpdate" "rollingUpdate" ($strategy.rollingUpdate | default $surge)) -}}
{{- end -}}
{{- end -}}

{{/* Seconds after which a rollout has failed: a pod may take as long to start as its probe allows. */}}
{{- define "baton.deadline" -}}
{{- $startup := (get .root.Values .role).probes.startup -}}
{{- add (mul (int $startup.periodSeconds) (int $startup.failureThreshold)) 60 -}}
{{- end -}}

{{/* The ServiceAccount of a role: the user's, or the chart's. Takes {root, role}. */}}
{{- define "baton.serviceAccount" -}}
{{- (get .root.Values .role).serviceAccountName | default (printf "%s-%s" (include "baton.fullname" .root) .role) -}}
{{- end -}}

{{/* A whole Deployment. Takes {root, role, image, ports: {name: number}, probePort}. */}}
{{- define "baton.deployment" -}}
{{- $name := printf "%s-%s" (include "baton.fullname" .root) .role -}}
{{- $block := get .root.Values .role -}}
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
    metadata:
      {{- include "baton.podMetadata" . | nindent 6 }}
    spec:
      serviceAccountName: {{ include "baton.serviceAccount" . }}
      automountServiceAccountToken: false
      enableServiceLinks: false # their BATON_... variables would name no setting
      terminationGracePeriodSeconds: {{ include "baton.grace" . }}
      securityContext:
        {{- include "baton.podSecurity" . | nindent 8 }}
      {{- include "baton.placement" . | nindent 6 }}
      {{- with $block.initContainers }}
      initContainers:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: {{ .role }}
          image: {{ include "baton.image" . }}
          imagePullPolicy: {{ .image.pullPolicy }}
          command: [baton]
          args:
            {{- include "baton.args" . | nindent 12 }}
          env:
            {{- include "baton.env" . | nindent 12 }}
          ports:
            {{- range $port, $number := .ports }}
            - {name: {{ $port }}, containerPort: {{ int $number }}, protocol: TCP}
            {{- end }}
          {{- include "baton.probes" (dict "root" .root "role" .role "port" .probePort) | nindent 10 }}
          {{- include "baton.lifecycle" . | nindent 10 }}
          resources:
            {{- include "baton.resources" . | nindent 12 }}
          securityContext:
            {{- include "baton.containerSecurity" . | nindent 12 }}
          volumeMounts:
            {{- include "baton.volumeMounts" . | nindent 12 }}
      volumes:
        {{- include "baton.volumes" . | nindent 8 }}
{{- end -}}
