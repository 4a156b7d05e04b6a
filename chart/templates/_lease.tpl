{{- /* The Lease by which this installation leads. VIPs alone have the one that capi-vip-allocator had, where it had it. */}}
{{- define "lease.name" -}}
{{- .Values.settings.LEASE_NAME | default (ternary "ip-address-controller-leader" "capi-vip-allocator.gorizond.io" .Values.addresses.enabled) -}}
{{- end }}
{{- define "lease.namespace" -}}
{{- .Values.settings.LEASE_NAMESPACE | default (ternary "kube-system" .Release.Namespace .Values.addresses.enabled) -}}
{{- end }}
