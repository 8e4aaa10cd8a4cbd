{{/* What is refused with a sentence, since the schema can only show the rule that a value breaks. */}}

{{/* All of it, before anything is rendered. Takes the root. */}}
{{- define "baton.refuse" -}}
{{- include "baton.checkImages" . -}}
{{- include "baton.checkRedis" . -}}
{{- include "baton.checkAlike" . -}}
{{- range $role := list "gateway" "prefill" "decode" -}}
{{- include "baton.checkRole" (dict "root" $ "role" $role) -}}
{{- end -}}
{{- include "baton.checkResources" (dict "where" "redis.resources" "resources" .Values.redis.resources "cure" "") -}}
{{- include "baton.checkResources" (dict "where" "autoscaler.resources" "resources" .Values.autoscaler.resources "cure" "") -}}
{{- $gateway := include "baton.settings" (dict "root" $ "role" "gateway") | fromYaml -}}
{{- if and (eq $gateway.topology "agg") .Values.prefill.enabled -}}
{{- fail "settings.topology: agg has no use for prefill workers, whose pods and GPUs would stay: set prefill.enabled to false, and leave settings.topology out" -}}
{{- end -}}
{{- end -}}

{{/* Takes the root. */}}
{{- define "baton.checkImages" -}}
{{- $images := dict "image.control" .Values.image.control "image.engine" .Values.image.engine "image.autoscaler" .Values.image.autoscaler "redis.image" .Values.redis.image -}}
{{- range $where, $image := $images -}}
{{- $name := $image.repository -}}
{{- if contains "@" $name -}}
{{- fail (printf "%s.repository is %s: put what follows the @ into %s.digest" $where $name $where) -}}
{{- end -}}
{{- if contains ":" (splitList "/" $name | last) -}}
{{- fail (printf "%s.repository is %s: put the tag into %s.tag" $where $name $where) -}}
{{- end -}}
{{- if ne $name (lower $name) -}}
{{- fail (printf "%s.repository is %s: names of images have no capital letters; put your registry in the place of REGISTRY" $where $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Never shows a URL: it may have a password in it. Takes the root. */}}
{{- define "baton.checkRedis" -}}
{{- with .Values.redis -}}
{{- $limit := dig "limits" "memory" "" .resources | toString -}}
{{- if and .enabled $limit (gt (include "baton.bytes" .maxmemory | float64) (include "baton.bytes" $limit | float64)) -}}
{{- fail (printf "redis.maxmemory is %s and redis.resources.limits.memory %s: raise the limit to half as much again, or Redis is killed before it is full" .maxmemory $limit) -}}
{{- end -}}
{{- if .existingUrl -}}
{{- if .enabled -}}
{{- fail "redis.existingUrl is set while redis.enabled is true: set redis.enabled to false to use another Redis, or leave the URL out" -}}
{{- end -}}
{{- if .existingSecret -}}
{{- fail "redis.existingUrl and redis.existingSecret are both set: leave one out; the key url of the Secret has the whole URL" -}}
{{- end -}}
{{- if regexMatch "@|[?&](username|password)=" .existingUrl -}}
{{- fail "redis.existingUrl has a password in it, which values must not: put the URL into a Secret, with the key url, and name it as redis.existingSecret" -}}
{{- end -}}
{{- if not (regexMatch "^rediss?://[^/]" .existingUrl) -}}
{{- fail "redis.existingUrl: it begins with redis://HOST or, with TLS, rediss://HOST" -}}
{{- end -}}
{{- else if not (or .enabled .existingSecret) -}}
{{- fail "redis.enabled is false: name another Redis by redis.existingUrl or, if its URL has a password, by redis.existingSecret" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Bytes, as text, of a quantity of Kubernetes or of Redis. */}}
{{- define "baton.bytes" -}}
{{- $units := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "kb" 1024 "mb" 1048576 "gb" 1073741824 -}}
{{- mulf (regexFind "^[0-9.]+(e[+]?[0-9]+)?" . | float64) (get $units (regexFind "[A-Za-z]*$" .)) -}}
{{- end -}}

{{/* Gateways and workers find each other by model and KV layout. Takes the root. */}}
{{- define "baton.checkAlike" -}}
{{- $roles := ternary (list "gateway" "prefill" "decode") (list "gateway" "decode") .Values.prefill.enabled -}}
{{- range $key, $default := dict "model" "demo" "servedModelName" "" "blockSize" 16 "maxModelLen" 0 -}}
{{- $said := list -}}
{{- $found := list -}}
{{- range $role := $roles -}}
{{- $value := get (include "baton.settings" (dict "root" $ "role" $role) | fromYaml) $key | default $default | toString -}}
{{- $found = append $found $value -}}
{{- $said = append $said (printf "%s of %s" ($value | default "the model's own") $role) -}}
{{- end -}}
{{- if gt (len (uniq $found)) 1 -}}
{{- $why := ternary "the shortest would count for all, and a model with a dynamic rope would not be served" "they would not find each other" (eq $key "maxModelLen") -}}
{{- fail (printf "settings.%s is %s, and %s: say it once, under settings; another model takes a release of its own" $key (join ", " $said) $why) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Takes {root, role}. */}}
{{- define "baton.checkRole" -}}
{{- $role := .role -}}
{{- $block := get .root.Values $role -}}
{{- $settings := include "baton.settings" . | fromYaml -}}
{{- $scaling := $block.autoscaling -}}
{{- if ne $scaling.mode "none" -}}
{{- if hasKey $block "replicas" -}}
{{- fail (printf "%s.replicas and %s.autoscaling.mode %s are both set: remove replicas, which would undo the autoscaler's work at each upgrade" $role $role $scaling.mode) -}}
{{- end -}}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) -}}
{{- fail (printf "%s.autoscaling.minReplicas is %d and maxReplicas %d: raise maxReplicas" $role (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- range concat $block.extraEnv (dig "rdma" "env" list $block) -}}
{{- if hasPrefix "BATON_" .name -}}
{{- fail (printf "%s.extraEnv: %s: settings go under %s.settings, by their Helm names" $role .name $role) -}}
{{- end -}}
{{- end -}}
{{- $cure := ternary "" (printf "; ask for GPUs by %s.gpu.count, and for RDMA devices by %s.rdma" $role $role) (eq $role "gateway") -}}
{{- include "baton.checkResources" (dict "where" (printf "%s.resources" $role) "resources" $block.resources "cure" $cure) -}}
{{- $url := $settings.otlpEndpoint | default "" -}}
{{- if and $url (not (regexMatch "^https?://[^/]" $url)) -}}
{{- fail (printf "settings.otlpEndpoint of %s is %s: write the scheme too, as http://%s" $role $url (splitList "://" $url | last)) -}}
{{- end -}}
{{- if and (eq $role "gateway") (eq (int $settings.port) (int $settings.adminPort)) -}}
{{- fail (printf "settings.port and settings.adminPort of the gateway are both %d: give the admin port another number" (int $settings.port)) -}}
{{- end -}}
{{- end -}}

{{/* Takes {where, resources, cure}. */}}
{{- define "baton.checkResources" -}}
{{- range $kind, $named := .resources -}}
{{- range $name := keys $named | sortAlpha -}}
{{- if not (has $name (list "cpu" "memory" "ephemeral-storage")) -}}
{{- fail (printf "%s.%s: %s is none of cpu, memory and ephemeral-storage%s" $.where $kind $name $.cure) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
