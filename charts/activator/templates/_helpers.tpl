{{/* Names, labels and numbers that more than one template needs. */}}

{{- define "activator.isKnative" -}}
{{- if eq .Values.profile "knative" }}true{{ end }}
{{- end }}

{{/* A cluster without Knative, of which revisions are read. */}}
{{- define "activator.isCluster" -}}
{{- if eq .Values.profile "kubernetes" }}true{{ end }}
{{- end }}

{{/* True if there is a port for KEDA. */}}
{{- define "activator.hasKedaPort" -}}
{{- if and (include "activator.isCluster" .) .Values.kubernetes.externalScaler.enabled }}true{{ end }}
{{- end }}

{{/* Whether it makes calls to the API server. */}}
{{- define "activator.callsApi" -}}
{{- if or (include "activator.isKnative" .) (include "activator.isCluster" .) }}true{{ end }}
{{- end }}

{{/* The Deployment's name, which others are made of. */}}
{{- define "activator.name" -}}
{{- if .Values.deploymentName }}{{ .Values.deploymentName }}
{{- else if include "activator.isKnative" . }}activator
{{- else if contains "activator" .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}{{ printf "%s-activator" (.Release.Name | trunc 53 | trimSuffix "-") }}
{{- end }}
{{- end }}

{{/* Beside Knative's own Deployment. */}}
{{- define "activator.isBeside" -}}
{{- if and (include "activator.isKnative" .) (ne (include "activator.name" .) "activator") }}true{{ end }}
{{- end }}

{{- define "activator.serviceName" -}}
{{- if include "activator.isKnative" . }}activator-service{{ else }}{{ include "activator.name" . }}{{ end }}
{{- end }}

{{- define "activator.hasService" -}}
{{- if and .Values.service.create (not (include "activator.isBeside" .)) }}true{{ end }}
{{- end }}

{{- define "activator.serviceAccountName" -}}
{{- if .Values.serviceAccount.name }}{{ .Values.serviceAccount.name }}
{{- else if .Values.serviceAccount.create }}{{ include "activator.name" . }}
{{- else }}default
{{- end }}
{{- end }}

{{- define "activator.roleName" -}}
{{- if include "activator.isBeside" . }}{{ include "activator.name" . }}{{ else }}knative-serving-activator{{ end }}
{{- end }}

{{/* What selects the pods of this Deployment and no others. A selector is for ever: nothing else may be added. */}}
{{- define "activator.selectorLabels" -}}
{{- if include "activator.isKnative" . -}}
app: activator
role: activator
{{- if include "activator.isBeside" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- else -}}
app.kubernetes.io/name: activator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- end }}

{{/* What the Service selects: in Knative's place, its own activators as well. */}}
{{- define "activator.serviceSelector" -}}
{{- if include "activator.isKnative" . }}app: activator{{ else }}{{ include "activator.selectorLabels" . }}{{ end }}
{{- end }}

{{/* In Knative's place what selects by its labels finds this one as well (config/core/deployments/activator.yaml). */}}
{{- define "activator.partOf" -}}
{{- if include "activator.isKnative" . }}knative-serving{{ else }}activator{{ end }}
{{- end }}

{{- define "activator.labels" -}}
{{- if include "activator.isKnative" . -}}
app: activator
role: activator
app.kubernetes.io/component: activator
{{ end -}}
app.kubernetes.io/name: {{ include "activator.partOf" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "activator.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* The admin port: health, metrics, debug, control. */}}
{{- define "activator.metricsPort" -}}
{{- if include "activator.isKnative" . }}9090{{ else }}8008{{ end }}
{{- end }}

{{/* A number that the profile settles where the values do not: (list VALUE OF-STANDALONE OF-KNATIVE ROOT). */}}
{{- define "activator.number" -}}
{{- if not (kindIs "invalid" (index . 0)) }}{{ index . 0 | int }}
{{- else if include "activator.isKnative" (index . 3) }}{{ index . 2 }}
{{- else }}{{ index . 1 }}
{{- end }}
{{- end }}

{{- define "activator.delay" -}}{{ include "activator.number" (list .Values.shutdown.delaySeconds 10 45 .) }}{{- end }}
{{- define "activator.drain" -}}{{ include "activator.number" (list .Values.shutdown.timeoutSeconds 45 540 .) }}{{- end }}

{{- define "activator.grace" -}}
{{- $grace := include "activator.number" (list .Values.terminationGracePeriodSeconds 60 600 .) | int }}
{{- $needed := add (include "activator.delay" . | int) (include "activator.drain" . | int) | int }}
{{- if lt $grace $needed }}
{{- fail (printf "terminationGracePeriodSeconds is %d, but shutdown.delaySeconds and shutdown.timeoutSeconds need %d: requests would be cut" $grace $needed) }}
{{- end }}
{{- $grace }}
{{- end }}

{{/* Of the rights, under Knative's names: its controllers have the rights of all its parts. */}}
{{- define "activator.roleLabels" -}}
{{- if not (include "activator.isBeside" .) -}}
serving.knative.dev/controller: "true"
{{ end -}}
{{- include "activator.labels" . }}
{{- end }}

{{- define "activator.isAutoscaled" -}}
{{- if kindIs "invalid" .Values.autoscaling.enabled }}{{ include "activator.isKnative" . }}
{{- else if .Values.autoscaling.enabled }}true
{{- end }}
{{- end }}

{{/* How many replicas there are at least. */}}
{{- define "activator.floor" -}}
{{- if include "activator.isAutoscaled" . }}{{ .Values.autoscaling.minReplicas | int }}{{ else }}{{ .Values.replicas | int }}{{ end }}
{{- end }}

{{/* How many there are at the most. */}}
{{- define "activator.ceiling" -}}
{{- if include "activator.isAutoscaled" . }}{{ .Values.autoscaling.maxReplicas | int }}{{ else }}{{ .Values.replicas | int }}{{ end }}
{{- end }}

{{/* Whether a budget would be of use, and would not keep the node of an only replica from being drained. */}}
{{- define "activator.hasBudget" -}}
{{- if and .Values.podDisruptionBudget.enabled (not (include "activator.isBeside" .)) }}
{{- if ge (include "activator.floor" . | int) 2 }}true
{{- else if and (include "activator.isAutoscaled" .) (kindIs "invalid" .Values.podDisruptionBudget.minAvailable) }}true
{{- end }}
{{- end }}
{{- end }}

{{- define "activator.scalesItself" -}}
{{- if not (regexMatch "^0+(\\.0+)?(ms|s|m|h)?$" .Values.knative.scaleFallback) }}true{{ end }}
{{- end }}

{{/* activator.yaml of the profiles standalone and kubernetes. */}}
{{- define "activator.file" -}}
{{- $listen := list (printf "%s:8012" .Values.bindHost) }}
{{- if .Values.tls.secretName }}
{{- $listen = append $listen (dict "address" (printf "%s:8443" .Values.bindHost) "certificate" "/etc/activator/tls/tls.crt" "key" "/etc/activator/tls/tls.key" "min_version" .Values.tls.minVersion) }}
{{- end }}
{{- $drain := printf "%ss" (include "activator.drain" .) }}
{{- $shutdown := dict "delay" (printf "%ss" (include "activator.delay" .)) "timeout" $drain "tunnels" $drain }}
{{- $admin := printf "%s:%s" .Values.bindHost (include "activator.metricsPort" .) }}
{{- $file := dict "listen" $listen "admin" (dict "listen" $admin "token" "file:/etc/activator/admin/token") "shutdown" $shutdown }}
{{- if include "activator.isCluster" . }}
{{- $cluster := dict "mode" "activations" "reconcile_interval" .Values.kubernetes.reconcileInterval "service" (printf "%s/%s" .Release.Namespace (include "activator.serviceName" .)) }}
{{- with .Values.kubernetes.namespace }}{{ $_ := set $cluster "namespace" . }}{{ end }}
{{- if include "activator.hasKedaPort" . }}
{{- $_ := set $cluster "external_scaler" (dict "listen" (printf "%s:%d" .Values.bindHost (int .Values.kubernetes.externalScaler.port))) }}
{{- end }}
{{- $_ := set $file "kubernetes" $cluster }}
{{- if .Values.members.enabled }}
{{- $listen := printf "%s:%d" .Values.bindHost (int .Values.members.port) }}
{{- $_ := set $file "members" (dict "listen" $listen "group" (include "activator.name" .) "key_file" "/etc/activator/members/key" "on_silence" .Values.members.onSilence "on_partition" .Values.members.onPartition) }}
{{- end }}
{{- end }}
{{- toYaml (merge $file .Values.config) }}
{{- end }}

{{/* The same for the profile knative, as variables: (list PREFIX MAPPING). */}}
{{- define "activator.variables" -}}
{{- $prefix := index . 0 }}
{{- range $key, $value := index . 1 }}
{{- $name := printf "%s%s" $prefix (upper $key) }}
{{- if kindIs "map" $value }}
{{- include "activator.variables" (list (printf "%s__" $name) $value) }}
{{- else if not (kindIs "invalid" $value) }}
- name: {{ $name }}
  value: {{ if kindIs "string" $value }}{{ $value | quote }}{{ else }}{{ toJson $value | quote }}{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/* What makes no sense together. Every template that is always rendered may call it; the Deployment does. */}}
{{- define "activator.check" -}}
{{- if and .Values.kubernetes.externalScaler.enabled (not (include "activator.isCluster" .)) }}{{ fail "kubernetes.externalScaler.enabled: only with profile=kubernetes" }}{{ end }}
{{- if include "activator.isKnative" . }}
{{- if .Values.config.revisions }}{{ fail "config.revisions: with profile=knative revisions come from the cluster" }}{{ end }}
{{- if and .Values.members.enabled (eq .Values.knative.sharing "knative") }}{{ fail "knative.sharing: knative gives each replica its own pods, which members.enabled excludes: use exact" }}{{ end }}
{{- if and (eq .Values.knative.sharing "exact") (not .Values.members.enabled) }}{{ fail "knative.sharing: exact needs members.enabled=true" }}{{ end }}
{{- if .Values.tls.secretName }}{{ fail "tls.secretName: with profile=knative TLS is switched on by system-internal-tls in config-network" }}{{ end }}
{{- else }}
{{- if include "activator.isCluster" . }}
{{- if .Values.config.revisions }}{{ fail "config.revisions: with profile=kubernetes Activations and annotated Services declare revisions" }}{{ end }}
{{- if and (gt (include "activator.ceiling" . | int) 1) (not .Values.members.enabled) }}{{ fail "replicas: with profile=kubernetes several replicas need members.enabled=true, since one of them writes for each object; or set config.workers to use more processors" }}{{ end }}
{{- else if .Values.kubernetes.namespace }}{{ fail "kubernetes.namespace: only with profile=kubernetes" }}
{{- end }}
{{- if and .Values.members.enabled (not (include "activator.isCluster" .)) }}{{ fail "members.enabled: only with profile=knative and profile=kubernetes" }}{{ end }}
{{- if include "activator.scalesItself" . }}{{ fail "knative.scaleFallback: only with profile=knative" }}{{ end }}
{{- if and .Values.serviceMonitor.enabled (not .Values.service.exposeAdmin) }}{{ fail "serviceMonitor.enabled needs service.exposeAdmin=true, since the Service has no metrics otherwise; a podMonitor needs neither" }}{{ end }}
{{- end }}
{{- if and .Values.service.ipFamilyPolicy (ne .Values.service.ipFamilyPolicy "SingleStack") (ne .Values.bindHost "[::]") }}{{ fail (printf "service.ipFamilyPolicy: %s needs bindHost=[::], since requests by IPv6 would reach a port on which nothing listens" .Values.service.ipFamilyPolicy) }}{{ end }}
{{- $hosts := dict }}
{{- range .Values.config.revisions }}
{{- $name := .name }}
{{- if not .match }}
{{- range .hosts }}
{{- if hasKey $hosts (lower .) }}{{ fail (printf "config.revisions: the host %s leads to %s and to %s; name it once" . (get $hosts (lower .)) $name) }}{{ end }}
{{- $_ := set $hosts (lower .) $name }}
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.serviceMonitor.enabled (not (include "activator.hasService" .)) }}{{ fail "serviceMonitor.enabled: this release has no Service; take podMonitor.enabled" }}{{ end }}
{{- if and (include "activator.isAutoscaled" .) (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) }}
{{- fail "autoscaling.minReplicas is greater than autoscaling.maxReplicas" }}
{{- end }}
{{- end }}

{{/* The Secret with the token of the admin port. */}}
{{- define "activator.adminSecret" -}}
{{- .Values.admin.tokenSecret | default (printf "%s-admin" (include "activator.name" .)) }}
{{- end }}

{{/* The Secret with the key of the members. */}}
{{- define "activator.memberSecret" -}}
{{- .Values.members.keySecret | default (printf "%s-members" (include "activator.name" .)) }}
{{- end }}
