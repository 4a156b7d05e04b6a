//go:build tools

// Package tools pins external-dns, which turns DNSEndpoint objects into records.
package tools

import _ "sigs.k8s.io/external-dns"
