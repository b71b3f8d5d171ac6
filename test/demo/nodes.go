package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/test/nodekit"
)

func (d *demo) twoNodes() []step {
	return []step{
		{"make two private nodes on one bridge, and an API server in memory with their Node objects", d.makeNodes},
		{"start both agents with --routing-mode=tunnel and wait until they are ready", d.startAgents},
		{"attach bee and drone on node-1, queen on node-2, through the CNI plugin", d.attachPods},
		{"wait until each node has the tunnel, and knows the pods of the other", d.awaitTunnel},
		{"ping between all pods of both nodes, IPv4 and IPv6", d.pingPods},
		{"ping between each node and the pods of the other, both ways", d.pingNodes},
		{"waggle status, of node-1", d.show("status")},
		{"waggle node list, of node-1", d.show("node", "list")},
		{"waggle ip list | grep default/, of node-1: pods with their identities and nodes", d.showPods},
		{"a network policy between the nodes: enforced, explained by node-2, changed", d.enforce},
		{"a pod sends with a false source address: dropped, with its reason (waggle drops)", d.spoof},
		{"detach the pods: no link of a pod remains", d.detachPods},
		{"stop the agents", d.stopAgents},
	}
}

func (d *demo) makeNodes(ctx context.Context) (err error) {
	if d.cluster, err = nodekit.NewCluster(nodekit.Options{BinDir: d.bin, AgentArgs: []string{"--routing-mode=tunnel"}}, 2); err != nil {
		return err
	}
	d.nodes = d.cluster.Nodes
	for _, n := range d.nodes {
		if err := d.serve(n); err != nil {
			return err
		}
	}
	definitions, err := d.nodes[0].Waggle(ctx, "install", "--only", "crds")
	if err != nil {
		return err
	}
	return d.servers[0].PutYAML(definitions)
}

// serve starts a replica of the API server for a node, and creates the Node object.
func (d *demo) serve(n *nodekit.Node) error {
	var server *kubetest.Server
	if err := n.Do(func() (err error) {
		if len(d.servers) == 0 {
			server, err = kubetest.Open()
		} else {
			server, err = d.servers[0].OpenReplica()
		}
		return err
	}); err != nil {
		return err
	}
	d.servers = append(d.servers, server)
	n.AddAgentArgs("--manifests-dir=", "--k8s-api-server="+server.URL(), "--ipam=kubernetes")
	object, err := os.ReadFile(filepath.Join(n.ManifestsDir(), "node.yaml"))
	if err != nil {
		return err
	}
	return server.PutYAML(string(object))
}

// awaitTunnel waits until the tunnel devices and their routes exist, and each node has the addresses of the other node's pods with an identity.
func (d *demo) awaitTunnel(ctx context.Context) error {
	return await(ctx, func() (err error) {
		for _, n := range d.nodes {
			err = errors.Join(err, ready(ctx, n, "overlays"), ready(ctx, n, "node-slots"), ready(ctx, n, "desired-routes"))
			for i, pod := range d.pods {
				for _, ipv6 := range []bool{false, true} {
					if d.nodeOf(i) != n {
						err = errors.Join(err, known(ctx, n, pod.Addr(ipv6).String()))
					}
				}
			}
		}
		return err
	})
}

// ready returns an error unless a table has rows and all of them are done.
func ready(ctx context.Context, n *nodekit.Node, table string) error {
	text, err := n.Waggle(ctx, "db", "show", table)
	if rows := strings.Count(text, "\n") - 1; err == nil && (rows < 1 || strings.Count(text, "Done") != rows) {
		err = fmt.Errorf("table %s of %s:\n%s", table, n.Name(), text)
	}
	return err
}

// known returns an error unless the map ipcache of a node has an identity and a node id for an address.
func known(ctx context.Context, n *nodekit.Node, addr string) error {
	text, err := n.Waggle(ctx, "bpf", "ipcache", "get", addr)
	if err != nil {
		return err
	}
	_, row, _ := strings.Cut(text, "\n")
	if fields := strings.Fields(row); len(fields) != 3 || !strings.HasPrefix(fields[0], addr+"/") || fields[1] == "0" || fields[2] == "0" {
		return fmt.Errorf("%s does not know %s:\n%s", n.Name(), addr, text)
	}
	return nil
}

// showPods prints the rows of pods in the list of addresses of the first node.
func (d *demo) showPods(ctx context.Context) error {
	var rows []string
	if err := await(ctx, func() error {
		text, err := d.nodes[0].Waggle(ctx, "ip", "list")
		if err != nil {
			return err
		}
		rows = nil
		for row := range strings.Lines(text) {
			if strings.Contains(row, "default/") {
				rows = append(rows, row)
			}
		}
		if len(rows) != 2*len(d.pods) {
			return fmt.Errorf("addresses of pods are missing:\n%s", text)
		}
		return nil
	}); err != nil {
		return err
	}
	_, err := fmt.Fprintln(d.out, indent(strings.Join(rows, "")))
	return err
}

func (d *demo) pingNodes(context.Context) error {
	begin, count := time.Now(), 0
	for i, pod := range d.pods {
		for _, n := range d.nodes {
			if d.nodeOf(i) == n {
				continue
			}
			for _, ipv6 := range []bool{false, true} {
				if err := nodekit.Ping(pod, n.UplinkAddr(ipv6), 56); err != nil {
					return fmt.Errorf("%s to %s: %w", pod.Name, n.Name(), err)
				}
				if err := nodekit.Ping(n.Host(), pod.Addr(ipv6), 56); err != nil {
					return fmt.Errorf("%s to %s: %w", n.Name(), pod.Name, err)
				}
				count += 2
			}
		}
	}
	d.logf("    %d pings in %.1f ms", count, ms(begin))
	return nil
}
