{{- define "pgpu.labels" -}}
app.kubernetes.io/name: pgpu
app.kubernetes.io/component: driver
{{- end }}
