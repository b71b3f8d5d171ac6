package inventory

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// kindOf maps each row of Documentation/ownership.md, by the start of its first column, to the kind that finds it. A new object of the kernel or the
// disk needs an entry and a kind that finds it.
var kindOf = map[string]string{
	"mount of the BPF file system":                  "mount",
	"BPF maps":                                      "pin",
	"word `protocol` in map `datapath`":             "pin",
	"entries of `endpoint_facts`":                   "pin", // removed with their map
	"entries of `ipcache`":                          "pin",
	"entries of `services`":                         "pin",
	"entries of `netdevs`":                          "pin",
	"ring buffer `events`":                          "pin",
	"shared tc blocks and their filters":            "filter",
	"clsact of pod links":                           "clsact",
	"program on `waggle_host` before Linux 6.6":     "clsact", // removed with the link, like the clsact
	"programs on `waggle_host`":                     "pin",
	"programs on devices that lead out":             "pin",
	"steps of `pod_egress`":                         "pin",
	"the same before Linux 6.6":                     "filter",
	"programs on the control group":                 "pin",
	"storage of sockets in `sock_connected`":        "", // removed with the sockets
	"programs that list sockets":                    "", // closed with the agent
	"nftables table `inet waggle`":                  "nft-table",
	"tunnel device `waggle_vxlan`":                  "tunnel",
	"program on `waggle_vxlan`":                     "pin",
	"veth pair `waggle_csum`, `waggle_csum2`":       "link",
	"program on `waggle_csum2`":                     "pin",
	"entries of `nodes`, `node_addrs`":              "pin", // removed with their map
	"entries of `overlay` and `encap`":              "pin", // removed with their map
	"veth pairs `waggle_host`/`waggle_net`":         "link",
	"addresses of `waggle_host`":                    "address",
	"routes":                                        "route",
	"entries of `policy`, `policy_ranges`, `cidrs`": "pin", // removed with their map
	"entries of `ct_":                               "pin",
	"entries of `nat4`":                             "pin",
	"ring buffer `ct_signals`":                      "pin",
	"sysctls under `net/`":                          "sysctl",
	"host ends of pod links":                        "pod-link",
	"addresses, routes and the neighbour entry":     "pod-link", // in the pod's namespace, removed with the link
	"abstract socket `@waggle-agent`":               "",         // closed with the process
	"`<state-dir>/agent.lock`":                      "file",
	"`<state-dir>/stall.txt`, `stall-before.txt`":   "file",
	"`<state-dir>/endpoints/<id>.json`":             "file",
	"`<state-dir>/ipam/":                            "file",
	"`<state-dir>/sysctls/before.json`":             "file",
	"`<state-dir>/deleteQueue/`":                    "file",
	"`<lib-dir>/k8s-snapshot`":                      "file",
	"sockets in `<state-dir>`":                      "file",
	"`--write-cni-conf-when-ready`":                 "cni-conf",
	"`.waggle_tmp` and `*.waggle_tmp`":              "cni-conf",
	"`*.waggle_bak`":                                "cni-conf-aside",
	"`<state-dir>/unmounting`":                      "file",
	"`<state-dir>/setup.lock`":                      "file",
	"`<state-dir>/self-test.json`":                  "file",
	"`<cni-bin-dir>/waggle-cni`":                    "cni-plugin",
	"endpoints `waggle-self-test-*`":                "pod-link",
	"`--cni-log-file`":                              "file",
	"`<state-dir>/mtus/given.json`":                 "file",
	"`<state-dir>/nodes/`":                          "file",
	"`<state-dir>/former-ranges/nodes.json`":        "file",
	"`<state-dir>/identities/`":                     "file",
	"`<state-dir>/service-holders/`":                "file",
	"`<state-dir>` and `<lib-dir>`":                 "directory",
}

// TestKinds_CoverTheOwnershipPage checks that every row of the page has a kind or a reason for none, and that kindOf has no other entries.
func TestKinds_CoverTheOwnershipPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../Documentation/ownership.md")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{"": true}
	for _, k := range kinds() {
		names[k.name] = true
	}
	onMachine, _, found := strings.Cut(string(text), "\n## Cluster")
	if !found {
		t.Fatal("the page has no part about the cluster")
	}
	used := map[string]bool{}
	for line := range strings.Lines(onMachine) {
		cells := strings.Split(line, "|")
		if len(cells) < 5 || strings.HasPrefix(cells[1], "-") || slices.Contains([]string{"object", "file"}, strings.TrimSpace(cells[1])) {
			continue
		}
		row := strings.TrimSpace(cells[1])
		known := false
		for prefix, name := range kindOf {
			if strings.HasPrefix(row, prefix) {
				known, used[prefix] = true, true
				if !names[name] {
					t.Errorf("%s: there is no kind %q", row, name)
				}
			}
		}
		if !known {
			t.Errorf("the inventory does not know the row %q: teach it, then say here by which kind it is found", row)
		}
	}
	for prefix := range kindOf {
		if !used[prefix] {
			t.Errorf("the page has no row %q", prefix)
		}
	}
}
