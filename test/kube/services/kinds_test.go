package services_test

import (
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

// empty requires that clients of a Service without endpoints get rejections in pods, on nodes and outside.
func empty(t *testing.T, s *stays) {
	cluster := s.Service(t, "empty", "NodePort", 82, "app: absent", "")
	s.RequireRejected(t, s.FromPod(t, "one"), "80", cluster...)
	s.RequireRejected(t, s.FromNode(t, s.A), "80", cluster...)
	s.RequireRejected(t, s.FromOutside(t), "30082", s.A.IPv4, s.A.IPv6)
}

// hostPortPod is a pod that listens on a port of its node.
const hostPortPod = `
apiVersion: v1
kind: Pod
metadata: {name: host-port}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  containers:
    - name: main
      image: waggle.local/talk:1
      imagePullPolicy: Never
      command: [/bin/talk, serve, "8080"]
      resources: {requests: {cpu: 20m}}
      ports: [{containerPort: 8080, hostPort: 8088}, {containerPort: 8080, hostPort: 8088, protocol: UDP}]
`

// hostPort creates a pod with a host port twice, with the same name and different addresses.
func hostPort(t *testing.T, w *world) {
	var before string
	for range 2 {
		w.ApplyManifest(t, hostPortPod, w.A.Name)
		if err := w.WaitPodReady(t.Context(), "default/host-port"); err != nil {
			t.Fatal(err)
		}
		ips, err := w.PodIPs(t.Context(), "default/host-port")
		if err != nil || ips[0] == before {
			t.Fatalf("the pod has the addresses %v, had %s: %v", ips, before, err)
		}
		before = ips[0]
		w.CheckReplies(t, w.FromOutside(t), "host-port", kube.ServerAddresses(), kube.BothTargets("8088", w.A.IPv4, w.A.IPv6)...)
		if err := w.DeletePod(t.Context(), "default/host-port"); err != nil {
			t.Fatal(err)
		}
	}
}
