package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/kube"
)

// inheritedLock is the descriptor of the lock in the process that up starts.
const inheritedLock = 3

// serve runs the cluster until a signal stops it. It runs twice: in the outer process of [kube.Contain] and in the inner one.
func serve(args []string) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	if os.Getpid() != 1 {
		// Package kube searches for the programs of the cluster in the working folder and its parents.
		self, err := os.Executable()
		if err == nil {
			err = os.Chdir(filepath.Dir(self))
		}
		if err != nil {
			return err
		}
		unix.CloseOnExec(inheritedLock)
		lock := os.NewFile(inheritedLock, "lock")
		if err := lock.Truncate(0); err != nil {
			return fmt.Errorf("write the number of this process to the lock: %w (start this with \"cluster up\")", err)
		}
		if _, err := fmt.Fprintln(lock, os.Getpid()); err != nil {
			return err
		}
		defer lock.Close() // after the cluster has ended
	}
	if code := kube.Contain(func() int { return hold(c) }); code != 0 {
		return fmt.Errorf("it ended with status %d", code)
	}
	return nil
}

// hold runs the cluster in the inner process.
func hold(c choices) int {
	stop, cancel := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer cancel()
	cluster, err := start(stop, c)
	if err != nil {
		fmt.Println(err)
	} else {
		<-stop.Done()
	}
	if cluster != nil {
		if e := cluster.Stop(); e != nil {
			fmt.Println(e)
			return 1
		}
	}
	if err != nil {
		return 1
	}
	return 0
}

func start(ctx context.Context, c choices) (*kube.Cluster, error) {
	limited, cancel := context.WithTimeout(ctx, 6*time.Minute)
	defer cancel()
	cluster, err := kube.New(limited, kube.Options{Nodes: c.nodes, ClusterCIDR: kube.DualStackCIDR, Controllers: kube.AllControllers, LogDir: file("logs")})
	if err != nil {
		return cluster, err
	}
	if err := cluster.Forward(file("kubeconfig")); err != nil {
		return cluster, err
	}
	self, err := os.Executable()
	if err != nil {
		return cluster, err
	}
	script := fmt.Sprintf("#!/bin/sh\nexec %q --kubeconfig=%q \"$@\"\n", filepath.Join(filepath.Dir(self), "kube", "kubectl"), file("kubeconfig"))
	if err := os.WriteFile(file("kubectl"), []byte(script), 0o755); err != nil {
		return cluster, err
	}
	if len(cluster.Nodes) > 1 {
		if err := os.WriteFile(file("pods.yaml"), []byte(podsOnNodes(cluster)), 0o644); err != nil {
			return cluster, err
		}
	}
	result := "ok"
	if !c.bare {
		if err := cluster.InstallWaggle(limited, c.install()...); err != nil {
			result = fmt.Sprintf("Waggle is not its network: %v", err) // the cluster stays up for inspection
		}
	}
	if err := os.WriteFile(file("result.new"), []byte(result), 0o644); err != nil {
		return cluster, err
	}
	return cluster, os.Rename(file("result.new"), file("result"))
}

// podsOnNodes returns a manifest with a pod on each node.
func podsOnNodes(c *kube.Cluster) (text string) {
	for _, n := range c.Nodes {
		text += fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: on-%[1]s, labels: {app: on-nodes}}
spec:
  nodeName: %[1]s
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: %[2]q, imagePullPolicy: Never, command: [sleep, "1000000"], resources: {requests: {cpu: 10m}}}]
`, n.Name, kube.ClientImage)
	}
	return text
}
