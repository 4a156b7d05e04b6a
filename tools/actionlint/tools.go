//go:build tools

// Package tools pins actionlint, which checks the workflows under .github.
package tools

import _ "github.com/rhysd/actionlint/cmd/actionlint"
