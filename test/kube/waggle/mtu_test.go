package waggle_test

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/kube"
)

// runningPodsFollowMTU changes the MTU of a node whose agent may enter pods. The link and the default routes of a running pod follow. The node never has a
// smaller MTU than the other nodes of the cluster, so their paths to it stay unchanged.
func runningPodsFollowMTU(t *testing.T, shared *kube.Cluster) {
	c, n := installedNode(t, shared, kube.NodeOptions{OwnDaemonSet: true, InstallFlags: []string{"--set", "enable-pod-mtu-updates=true"}})
	if err := hasCapabilities(t.Context(), n, "waggle-agent --config-dir", agentCapabilities|1<<unix.CAP_SYS_ADMIN); err != nil {
		t.Error(err)
	}
	runPod(t, c, "running", n)
	has := func(link, route int) {
		t.Helper()
		want := []int{link, link, route, route}
		if err := c.WaitFor(t.Context(), fmt.Sprintf("the MTU %d in the pod", link), func() error {
			have, err := podMTUs(t, n, "running")
			if err == nil && !slices.Equal(have, want) {
				err = fmt.Errorf("the ends of the pod's link and its default routes have the MTUs %v, want %v", have, want)
			}
			return err
		}); err != nil {
			table, shown := n.Waggle(t.Context(), "db", "show", "pod-mtus")
			t.Fatalf("%v\nthe table pod-mtus: %v\n%s", err, shown, table)
		}
	}
	has(1500, 1450)
	for _, mtu := range []int{9000, 1500} {
		if _, err := n.Run(t.Context(), "ip", "link", "set", "dev", "eth0", "mtu", strconv.Itoa(mtu)); err != nil {
			t.Fatal(err)
		}
		has(mtu, mtu-50)
		for _, addr := range []string{n.IPv4, n.IPv6} {
			if out, err := c.Exec(t.Context(), "running", "ping", "-c", "1", "-W", "15", "-s", strconv.Itoa(mtu-200), addr); err != nil {
				t.Errorf("with an MTU of %d the pod does not reach %s: %v\n%s", mtu, addr, err, out)
			}
		}
	}
}

var mtuWord = regexp.MustCompile(`\bmtu (\d+)\b`)

// podMTUs returns the MTUs of the host end of a pod's link, of the end in the pod, and of the pod's default routes of IPv4 and IPv6, in bytes.
func podMTUs(t *testing.T, n *kube.Node, pod string) (mtus []int, err error) {
	t.Helper()
	all, err := readRows[struct{ K8sPodName, HostIfName, IfName, NetnsPath string }](t, n, "endpoints")
	if err != nil {
		return nil, err
	}
	for _, e := range all {
		if e.K8sPodName != pod {
			continue
		}
		out, err := n.Run(t.Context(), "sh", "-c", fmt.Sprintf("ip -o link show dev %s && nsenter --net=%s sh -c 'ip -o link show dev %s && ip -4 route show default && ip -6 route show default'",
			e.HostIfName, e.NetnsPath, e.IfName))
		if err != nil {
			return nil, err
		}
		for _, match := range mtuWord.FindAllStringSubmatch(out, -1) {
			mtu, err := strconv.Atoi(match[1])
			if err != nil {
				return nil, err
			}
			mtus = append(mtus, mtu)
		}
		return mtus, nil
	}
	return nil, fmt.Errorf("pod %s has no endpoint", pod)
}
