{{- /* The Lease for leader election. With addresses.enabled: false, it has the name and namespace of capi-vip-allocator's Lease. */}}
{{- define "lease.name" -}}
{{- .Values.settings.LEASE_NAME | default (ternary "ip-address-controller-leader" "capi-vip-allocator.gorizond.io" .Values.addresses.enabled) -}}
{{- end }}
{{- define "lease.namespace" -}}
{{- .Values.settings.LEASE_NAMESPACE | default (ternary "kube-system" .Release.Namespace .Values.addresses.enabled) -}}
{{- end }}
