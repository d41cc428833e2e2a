{{- define "kruise-rs.namespace" -}}
{{ .Values.installation.namespace | default .Release.Namespace }}
{{- end }}

{{- define "kruise-rs.image" -}}
{{- $image := .Values.manager.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default (printf "v%s" .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- define "kruise-rs.failurePolicies" -}}
{{- with .Values.failurePolicies }}{{ . | quote }}{{ end }}
{{- end }}

{{- /* By these annotations whoever writes the CA into the webhook configurations knows whose; by default cert-manager. */}}
{{- define "kruise-rs.injection" -}}
{{- $own := dict "cert-manager.io/inject-ca-from" (printf "%s/kruise-webhook-certs" (include "kruise-rs.namespace" .)) }}
{{- toYaml (.Values.externalCerts.annotations | default $own) }}
{{- end }}

{{- /* Of the root and the annotations of one role. Roles read these settings at their start; with the settings of the manifests
       there is no annotation for them. */}}
{{- define "kruise-rs.podAnnotations" -}}
{{- $own := dict }}
{{- with first . }}
{{- if or (ne .Values.featureGates "ImagePullJobGate=true") .Values.failurePolicies }}
{{- $settings := printf "%s;%s" .Values.featureGates .Values.failurePolicies | sha256sum | trunc 16 }}
{{- $own = dict "kruise.rs/settings" $settings }}
{{- end }}
{{- end }}
{{- with merge $own (last . | default dict) }}{{ toYaml . }}{{ end }}
{{- end }}

{{- /* Of the labels by which the Pods of a role are found, which stay as they are, and further ones. */}}
{{- define "kruise-rs.podLabels" -}}
{{- toYaml (merge (first .) (last . | default dict)) }}
{{- end }}

{{- /* Of the priority class of a role and that of the manifests, which holds where there is no such value: `helm upgrade --reuse-values`
       takes the values of the chart before as they are. An empty one stays empty. */}}
{{- define "kruise-rs.priorityClass" -}}
{{- if kindIs "invalid" (first .) }}{{ last . | quote }}{{ else }}{{ first . | quote }}{{ end }}
{{- end }}

{{- /* Of the values of one role. */}}
{{- define "kruise-rs.args" -}}
{{- $args := list }}
{{- with .log.level }}{{ $args = append $args (printf "--v=%v" .) }}{{ end }}
{{- with .socketFile }}{{ $args = append $args (printf "--socket-file=%s" .) }}{{ end }}
{{- with concat $args (.extraArgs | default list) }}{{ toYaml . }}{{ end }}
{{- end }}

{{- define "kruise-rs.socket.host" -}}
{{- if .Values.daemon.socketLocation -}}
path: {{ .Values.daemon.socketLocation | quote }}
type: Directory
{{- else -}}
{{ toYaml (get (include "kruise-rs.runtimes" . | fromYaml) .Values.daemon.runtime).host }}
{{- end }}
{{- end }}

{{- define "kruise-rs.socket.inside" -}}
{{- if .Values.daemon.socketLocation -}}
/hostvarrun
{{- else -}}
{{ (get (include "kruise-rs.runtimes" . | fromYaml) .Values.daemon.runtime).inside }}
{{- end }}
{{- end }}
