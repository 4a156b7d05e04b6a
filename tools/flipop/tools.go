//go:build tools

// Package tools pins FLIPOP, the controller whose users must be able to switch to ours and back.
package tools

import _ "github.com/digitalocean/flipop/cmd/flipop"
