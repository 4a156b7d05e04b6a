// Command etcd is the etcd server, built from its published module: the upstream main package is not importable.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
