//go:build tools

// Package tools pins Helm, which renders the chart into the plain manifests and installs it in tests.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
