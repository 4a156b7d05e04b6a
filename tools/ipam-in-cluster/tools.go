//go:build tools

// Package tools pins the in-cluster IPAM provider, which gives each IPAddressClaim an address of a pool.
package tools

import _ "sigs.k8s.io/cluster-api-ipam-provider-in-cluster"
