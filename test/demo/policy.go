package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/waggle-net/waggle/test/nodekit"
)

// port is the TCP port on which the queen listens.
const port = 80

// policy is a NetworkPolicy that allows only the named pods to connect to the queen.
const policy = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: queen, namespace: default}
spec:
  podSelector: {matchLabels: {name: queen}}
  ingress:
  - from: [{podSelector: {matchExpressions: [{key: name, operator: In, values: [%s]}]}}]
    ports: [{port: 80}]
`

// names are the names of the pods. The queen must be the last one.
var names = []string{"bee", "drone", "queen"}

// nodeOf returns the node of a pod. The queen is on the last node, the other pods are on the first one.
func (d *demo) nodeOf(pod int) *nodekit.Node {
	if pod == len(names)-1 {
		return d.nodes[len(d.nodes)-1]
	}
	return d.nodes[0]
}

// describePods writes the objects of the pods. Policies select the pods by the labels of these objects.
func (d *demo) describePods() error {
	text := "apiVersion: v1\nkind: Namespace\nmetadata: {name: default}\n"
	for i, name := range names {
		text += fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: default, uid: %[1]s, labels: {name: %[1]s}}\n"+
			"spec: {nodeName: %s}\n", name, d.nodeOf(i).Name())
	}
	return d.write("pods.yaml", text)
}

// write passes Kubernetes objects to the agents: as a manifest of the only node, or through the API server.
func (d *demo) write(file, text string) error {
	if len(d.servers) > 0 {
		return d.servers[0].PutYAML(text)
	}
	return d.nodes[0].WriteManifest(file, text)
}

// enforce allows only the drone to connect to the queen, shows the verdicts with their reasons, and then allows the bee as well.
func (d *demo) enforce(ctx context.Context) (err error) {
	queen := d.pods[len(d.pods)-1]
	var listener net.Listener
	if err := queen.Do(func() (err error) {
		listener, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	}); err != nil {
		return err
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	for _, allowed := range [][]string{{"drone"}, {"drone", "bee"}} {
		if err := d.write("queen.yaml", fmt.Sprintf(policy, strings.Join(allowed, ", "))); err != nil {
			return err
		}
		d.logf("    NetworkPolicy default/queen: %s may connect to queen, port %d, and no other pod", strings.Join(allowed, " and "), port)
		for _, from := range d.pods[:len(d.pods)-1] {
			if err := d.try(ctx, from, queen, slices.Contains(allowed, from.Name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// try waits until the command explains a connection with the expected verdict, then attempts the connection and prints the result.
func (d *demo) try(ctx context.Context, from, to *nodekit.Pod, allowed bool) error {
	verdict := "DENIED"
	if allowed {
		verdict = "ALLOWED"
	}
	args := []string{"policy", "explain", "--from", "default/" + from.Name, "--to", "default/" + to.Name, "--port", fmt.Sprintf("%d/TCP", port)}
	kernels := 2 // maps of the sender and of the receiver
	if len(d.nodes) > 1 {
		kernels = 1 // the node of the queen has only the maps of its own pods
	}
	var why string
	if err := await(ctx, func() error {
		text, err := d.nodes[len(d.nodes)-1].Waggle(ctx, args...)
		why, _, _ = strings.Cut(text, "\n")
		if err == nil && (!strings.HasPrefix(why, verdict) || strings.Count(text, "kernel: agrees") != kernels) {
			err = fmt.Errorf("want %s, but waggle %s says:\n%s", verdict, strings.Join(args, " "), text)
		}
		return err
	}); err != nil {
		return err
	}
	for _, ipv6 := range []bool{false, true} {
		timeout := 500 * time.Millisecond // no reply is expected
		if allowed {
			timeout = 15 * time.Second
		}
		if err := connect(from, to.Addr(ipv6), timeout); (err == nil) != allowed {
			return fmt.Errorf("%s to %s, IPv6 %t, ended with %v, but waggle says: %s", from.Name, to.Name, ipv6, err, why)
		}
	}
	outcome := "no answer"
	if allowed {
		outcome = "connected"
	}
	d.logf("    %-5s to queen: %s. waggle %s:", from.Name, outcome, strings.Join(args, " "))
	_, err := fmt.Fprintln(d.out, indent(why))
	return err
}

func connect(from nodekit.NetNS, to netip.Addr, timeout time.Duration) error {
	return from.Do(func() error {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, port).String(), timeout)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}
