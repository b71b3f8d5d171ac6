// Package kube runs a real Kubernetes cluster for a test and removes all its resources afterwards: etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler in a network namespace of their own, and nodes. Each node is a set of namespaces with its own containerd, kubelet, folders and cgroups. The
// package needs root, but neither Docker nor a registry.
//
// A test package calls [Main] in TestMain and [Start] in its tests:
//
//	func TestMain(m *testing.M) { kube.Main(m) }
//
//	func TestPrivilegedSomething(t *testing.T) {
//		c := kube.Start(t, kube.Options{ClusterCIDR: kube.DualStackCIDR})
//		if err := c.InstallWaggle(t.Context()); err != nil {
//			t.Fatal(err)
//		}
//		if err := c.RunPod(t.Context(), kube.Pod{Name: "client", Node: "node-1"}); err != nil {
//			t.Fatal(err)
//		}
//		out, err := c.Exec(t.Context(), "default/client", "ip", "address")
//		...
//	}
//
// Main runs the tests inside a PID namespace. The end of the namespace ends all processes of the tests, also after SIGKILL.
package kube
