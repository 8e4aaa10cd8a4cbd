{{/* How KV goes from prefill to decode workers. */}}

{{/* YAML of what both roles have that decides it: transport, tp and rdma by role. Takes the root. */}}
{{- define "baton.ends" -}}
{{- $ends := dict -}}
{{- range $role := list "prefill" "decode" -}}
{{- $settings := include "baton.settings" (dict "root" $ "role" $role) | fromYaml -}}
{{- $rdma := (get $.Values $role).rdma -}}
{{- $_ := set $ends $role (dict "transport" ($settings.transport | default "auto") "tp" (int ($settings.tp | default 1)) "rdma" (ternary $rdma.resource "" $rdma.enabled)) -}}
{{- end -}}
{{- toYaml $ends -}}
{{- end -}}

{{/* Why nothing is read over RDMA whatever devices there are; empty where it can be. Takes the root. */}}
{{- define "baton.whyNoRdma" -}}
{{- $ends := include "baton.ends" . | fromYaml -}}
{{- $reason := "" -}}
{{- range $role, $end := $ends -}}
{{- if eq $end.transport "tcp" }}{{ $reason = printf "settings.transport of %s is tcp" $role }}{{ end -}}
{{- end -}}
{{- if not .Values.prefill.enabled }}{{ $reason = "prefill.enabled is false: KV moves only where a worker drains" }}{{ end -}}
{{- $reason -}}
{{- end -}}

{{/* Refuses a transport that pods cannot follow, and RDMA devices that nothing would use. Takes
{root, role}. */}}
{{- define "baton.checkTransport" -}}
{{- $ends := include "baton.ends" .root | fromYaml -}}
{{- $own := get $ends .role -}}
{{- $other := get $ends (ternary "decode" "prefill" (eq .role "prefill")) -}}
{{- if eq $own.transport "mapped" -}}
{{- fail (printf "%s: transport mapped: pods of two nodes could not hand over; auto maps what is on one node (transfer.hostPath)" .role) -}}
{{- end -}}
{{- if and (gt (int $own.tp) 1) (eq $own.transport "nccl") -}}
{{- fail (printf "%s: transport nccl: workers with tp %d hand over mapped, by nixl or by tcp; set settings.transport to auto" .role (int $own.tp)) -}}
{{- end -}}
{{- if and .root.Values.prefill.enabled (eq .role "decode") (has $own.transport (list "nixl" "nccl")) (not (has $other.transport (list "auto" $own.transport))) -}}
{{- fail (printf "settings.transport of prefill is %s and of decode %s: the one offers nothing that the other reads" $other.transport $own.transport) -}}
{{- end -}}
{{- if $own.rdma -}}
{{- with include "baton.whyNoRdma" .root -}}
{{- fail (printf "%s.rdma.enabled: %s, so nothing would use %s: leave it out" $.role . $own.rdma) -}}
{{- end -}}
{{- if not $other.rdma -}}
{{- fail (printf "%s.rdma.enabled: the other role has no RDMA device, and KV is read over RDMA where both have one: enable it for prefill and decode" .role) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* YAML of the way that the values lead to, between nodes and on one, each with its reason. Takes
the root. */}}
{{- define "baton.ways" -}}
{{- $ends := include "baton.ends" . | fromYaml -}}
{{- $named := list $ends.prefill.transport $ends.decode.transport -}}
{{- $rdma := "no role has RDMA devices (rdma.enabled)" -}}
{{- if $ends.prefill.rdma }}{{ $rdma = printf "both roles have RDMA devices (%s)" (uniq (list $ends.prefill.rdma $ends.decode.rdma) | join ", ") }}{{ end -}}
{{- $between := dict "way" "tcp" "why" $rdma -}}
{{- with include "baton.whyNoRdma" . -}}
{{- $between = dict "way" "tcp" "why" . -}}
{{- else -}}
{{- if has "nccl" $named -}}
{{- $between = dict "way" "nccl" "why" (printf "settings.transport is nccl; %s" $rdma) -}}
{{- else if has "nixl" $named -}}
{{- $between = dict "way" "nixl" "why" (printf "settings.transport is nixl; %s" $rdma) -}}
{{- else if $ends.prefill.rdma -}}
{{- $between = dict "way" "nixl" "why" (printf "%s; by tcp where the engine image lacks nixl-cu13" $rdma) -}}
{{- end -}}
{{- end -}}
{{- $within := $between -}}
{{- if and (not (has "tcp" $named)) (not (has "nixl" $named)) (not (has "nccl" $named)) -}}
{{- if and .Values.colocated.enabled (not .Values.transfer.hostPath) -}}
{{- $within = dict "way" "mapped" "why" "both are in one pod (colocated); as between pods where a pool cannot be mapped" -}}
{{- else if .Values.transfer.hostPath -}}
{{- $within = dict "way" "mapped" "why" "they meet in transfer.hostPath; as between nodes where a pool cannot be mapped" -}}
{{- else -}}
{{- $within = dict "way" $between.way "why" "their pods share no folder (transfer.hostPath), so it is as between nodes" -}}
{{- end -}}
{{- end -}}
{{- toYaml (dict "between" $between "within" $within) -}}
{{- end -}}
