//go:build tools

// Package tools pins kwok, which plays the kubelet for nodes and pods that have no machine.
package tools

import _ "sigs.k8s.io/kwok/cmd/kwok"
