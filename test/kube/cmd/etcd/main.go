// Command etcd is the database of Kubernetes, built from its module: the API server streams first lists only from etcd 3.4.31, 3.5.13 or newer, and Debian has
// an older one.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
