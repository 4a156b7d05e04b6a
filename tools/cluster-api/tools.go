//go:build tools

// Package tools pins Cluster API: its core manager, and clusterctl, which installs providers.
package tools

import (
	_ "sigs.k8s.io/cluster-api/cmd/clusterctl"
	_ "sigs.k8s.io/cluster-api/core"
)
