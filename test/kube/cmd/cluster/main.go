// Command cluster runs a Kubernetes cluster with Waggle for interactive use, on this machine and without Docker.
//
//	cluster up [-nodes 2] [-bare] [-install-flags "--set debug=true"]
//	cluster node node-1 [program and arguments]
//	cluster down
//
// The folder in the environment variable WAGGLE_CLUSTER_DIR, by default /tmp/waggle-cluster, identifies a cluster.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if os.Geteuid() != 0 {
		return errors.New("a cluster needs namespaces, mounts and cgroups: run this as root")
	}
	if len(args) == 0 {
		return errors.New("use one of: up, node, down")
	}
	switch args[0] {
	case "up":
		return up(args[1:])
	case "node":
		return node(args[1:])
	case "down":
		return down()
	case "run": // started by up
		return serve(args[1:])
	}
	return fmt.Errorf("%q: use one of: up, node, down", args[0])
}

// choices holds the flags of up, which passes them to serve.
type choices struct {
	nodes        int
	bare         bool
	installFlags string
}

func parse(args []string) (c choices, err error) {
	flags := flag.NewFlagSet("cluster up", flag.ContinueOnError)
	flags.IntVar(&c.nodes, "nodes", 1, "number of nodes")
	flags.BoolVar(&c.bare, "bare", false, "do not install Waggle: nodes stay NotReady until it is installed")
	flags.StringVar(&c.installFlags, "install-flags", "", "further flags of waggle install, separated by spaces")
	err = flags.Parse(args)
	if err == nil && (flags.NArg() > 0 || c.nodes < 1 || c.nodes > 200) {
		err = fmt.Errorf("want no arguments and 1 to 200 nodes")
	}
	return c, err
}

// install returns the flags of "waggle install".
func (c choices) install() []string { return strings.Fields(c.installFlags) }

// file returns the path of a file in the folder for users. All other files are in the private namespaces of the cluster's processes.
func file(name string) string { return filepath.Join(stateDir(), name) }

func stateDir() string {
	if dir := os.Getenv("WAGGLE_CLUSTER_DIR"); dir != "" {
		return dir
	}
	return "/tmp/waggle-cluster"
}
