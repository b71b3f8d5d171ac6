package install

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// mounts returns the mounts of a container as "host path -> path options".
func mounts(pod corev1.PodSpec, c corev1.Container) (out []string) {
	from := map[string]string{}
	for _, v := range pod.Volumes {
		if from[v.Name] = "config"; v.HostPath != nil {
			from[v.Name] = v.HostPath.Path
		}
	}
	for _, m := range c.VolumeMounts {
		line := from[m.Name] + " -> " + m.MountPath
		if m.ReadOnly {
			line += " read-only"
		}
		if m.MountPropagation != nil {
			line += " " + string(*m.MountPropagation)
		}
		out = append(out, line)
	}
	return out
}

// TestAgent_PrivilegesMatchDocumentation compares the agent's pod with Documentation/install.md.
func TestAgent_PrivilegesMatchDocumentation(t *testing.T) {
	t.Parallel()
	pod := objects(t, usual())["DaemonSet waggle"].(*appsv1.DaemonSet).Spec.Template.Spec
	agent := pod.Containers[0]
	if got, want := mounts(pod, agent), []string{
		"config -> /etc/waggle read-only", "/sys/fs/bpf -> /sys/fs/bpf HostToContainer", "/var/run/waggle -> /var/run/waggle",
		"/var/lib/waggle -> /var/lib/waggle", "/etc/cni/net.d -> /etc/cni/net.d", "/proc/sys/net -> /host/proc/sys/net",
		"/sys/fs/cgroup -> /host/sys/fs/cgroup read-only",
	}; !slices.Equal(got, want) {
		t.Errorf("the agent mounts %q, want %q", got, want)
	}
	setup := pod.InitContainers[0]
	if got, want := mounts(pod, setup), []string{
		"config -> /etc/waggle read-only", "/sys/fs/bpf -> /sys/fs/bpf Bidirectional", "/var/run/waggle -> /var/run/waggle",
		"/opt/cni/bin -> /opt/cni/bin", "/etc -> /host/etc read-only",
	}; !slices.Equal(got, want) || len(pod.InitContainers) != 1 || *setup.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		t.Errorf("setup mounts %q, want %q", got, want)
	}
	s := agent.SecurityContext
	if !slices.Equal(s.Capabilities.Add, []corev1.Capability{"NET_ADMIN", "BPF", "PERFMON", "NET_RAW"}) || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
		s.Privileged != nil || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem {
		t.Errorf("the agent may do %+v", s)
	}
	if len(pod.Containers) != 1 || !pod.HostNetwork || pod.HostPID || pod.HostIPC || pod.PriorityClassName != "system-node-critical" {
		t.Errorf("pod: %+v", pod)
	}
	used := map[string]bool{}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, m := range c.VolumeMounts {
			used[m.Name] = true
		}
	}
	for _, v := range pod.Volumes {
		if !used[v.Name] {
			t.Errorf("volume %s is mounted nowhere", v.Name)
		}
	}
}

// TestAgent_RawSocketsOnlyForProbes: without probes of other nodes the agent needs no raw sockets.
func TestAgent_RawSocketsOnlyForProbes(t *testing.T) {
	t.Parallel()
	options := usual()
	options.Set = []string{"enable-health-checking=false"}
	pod := objects(t, options)["DaemonSet waggle"].(*appsv1.DaemonSet).Spec.Template.Spec
	if got, want := pod.Containers[0].SecurityContext.Capabilities.Add, []corev1.Capability{"NET_ADMIN", "BPF", "PERFMON"}; !slices.Equal(got, want) {
		t.Errorf("the agent may do %q, want %q", got, want)
	}
}

// TestAgent_EntersPodsOnlyIfConfigured: the agent may find and enter the network namespaces of pods only if it has to close sockets in them or change
// their MTU.
func TestAgent_EntersPodsOnlyIfConfigured(t *testing.T) {
	t.Parallel()
	for set, enters := range map[string]bool{"bpf-lb-sock-terminate-pod-connections=true": true, "bpf-lb-sock-terminate-pod-connections=1": true,
		"bpf-lb-sock-terminate-pod-connections=false": false, "enable-pod-mtu-updates=true": true, "enable-pod-mtu-updates=false": false} {
		options := usual()
		options.Set = []string{set}
		pod := objects(t, options)["DaemonSet waggle"].(*appsv1.DaemonSet).Spec.Template.Spec
		agent, want := pod.Containers[0], []corev1.Capability{"NET_ADMIN", "BPF", "PERFMON", "NET_RAW"}
		if enters {
			want = append(want, "SYS_ADMIN")
		}
		if got := agent.SecurityContext.Capabilities; !slices.Equal(got.Add, want) || !slices.Equal(got.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("%s: the agent may do %+v, want %q", set, got, want)
		}
		if got := slices.Contains(mounts(pod, agent), "/var/run/netns -> /var/run/netns read-only HostToContainer"); got != enters {
			t.Errorf("%s: the agent sees namespaces of pods: %v", set, got)
		}
	}
}

// TestAgent_HasTheFileOfTheIPMasqAgent: the file comes from the usual ConfigMap of the ip-masq-agent, which need not exist.
func TestAgent_HasTheFileOfTheIPMasqAgent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		set        []string
		dir, file  string
		complaints string
	}{
		{nil, "", "", ""},
		{[]string{"enable-ip-masq-agent=false"}, "", "", ""},
		{[]string{"enable-ip-masq-agent=true"}, "/etc/config", "ip-masq-agent", ""},
		{[]string{"enable-ip-masq-agent=true", "ip-masq-agent-config-path=/masq/here.yaml"}, "/masq", "here.yaml", ""},
		{[]string{"enable-ip-masq-agent=true", "ip-masq-agent-config-path=here.yaml"}, "", "", "ip-masq-agent-config-path=here.yaml: want an absolute path"},
	} {
		options := usual()
		options.Set = c.set
		if c.complaints != "" {
			if _, err := newValues(options); err == nil || !strings.Contains(err.Error(), c.complaints) {
				t.Errorf("%q: %v", c.set, err)
			}
			continue
		}
		pod := objects(t, options)["DaemonSet waggle"].(*appsv1.DaemonSet).Spec.Template.Spec
		at := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == "ip-masq-agent" })
		if (at >= 0) != (c.dir != "") || at >= 0 && !slices.Contains(mounts(pod, pod.Containers[0]), "config -> "+c.dir+" read-only") {
			t.Errorf("%q: mounts %q", c.set, mounts(pod, pod.Containers[0]))
			continue
		}
		if at < 0 {
			continue
		}
		if m := pod.Volumes[at].ConfigMap; m.Name != "ip-masq-agent" || m.Optional == nil || !*m.Optional || len(m.Items) != 1 || m.Items[0].Key != "config" ||
			m.Items[0].Path != c.file {
			t.Errorf("%q: %+v", c.set, m)
		}
	}
}

// TestAgent_MountsNothingOverOtherFolders: a directory that is mounted over another one hides it, or the container does not start.
func TestAgent_MountsNothingOverOtherFolders(t *testing.T) {
	t.Parallel()
	set := []string{"enable-ip-masq-agent=true", "bpf-lb-sock-terminate-pod-connections=true", "write-cni-conf-when-ready=/opt/cni/conf/05-waggle.conflist"}
	options := usual()
	options.Set = set
	folders := []string{"/", "/etc", "/var", "/usr/bin", "/proc/self", "/dev", "/var/run/secrets/kubernetes.io/serviceaccount", "/etc/waggle/..", "/etc/../etc/waggle"}
	for _, m := range objects(t, options)["DaemonSet waggle"].(*appsv1.DaemonSet).Spec.Template.Spec.Containers[0].VolumeMounts {
		if m.Name != "ip-masq-agent" {
			folders = append(folders, m.MountPath, m.MountPath+"/deeper", m.MountPath[:strings.LastIndex(m.MountPath, "/")])
		}
	}
	for _, folder := range folders {
		options.Set = append(slices.Clip(set), "ip-masq-agent-config-path="+folder+"/ip-masq-agent")
		if _, err := newValues(options); err == nil || !strings.Contains(err.Error(), "--set ip-masq-agent-config-path="+folder+"/") {
			t.Errorf("in %s: %v", folder, err)
		}
	}
	for _, folder := range []string{"/etc/waggler", "/etc/cni/net.d", "/ip-masq", "/var/lib/ip-masq-agent"} { // the CNI configuration is in another directory
		options.Set = append(slices.Clip(set), "ip-masq-agent-config-path="+folder+"/ip-masq-agent")
		if v, err := newValues(options); err != nil || v.MasqDir != folder {
			t.Errorf("in %s: %v, %s", folder, err, v.MasqDir)
		}
	}
}

func TestCluster_HasNoNodeAccess(t *testing.T) {
	t.Parallel()
	pod := objects(t, usual())["Deployment waggle-cluster"].(*appsv1.Deployment).Spec.Template.Spec
	c := pod.Containers[0]
	if got := mounts(pod, c); !slices.Equal(got, []string{"config -> /etc/waggle read-only"}) {
		t.Errorf("mounts: %q", got)
	}
	if !*pod.SecurityContext.RunAsNonRoot || c.SecurityContext.Capabilities.Add != nil || !*c.SecurityContext.ReadOnlyRootFilesystem {
		t.Errorf("%+v", c.SecurityContext)
	}
}

// TestCluster_NeedsNoSecondNode: a cluster of one node runs both replicas. A replica that needs its own node would stay Pending.
func TestCluster_NeedsNoSecondNode(t *testing.T) {
	t.Parallel()
	deployment := objects(t, usual())["Deployment waggle-cluster"].(*appsv1.Deployment)
	pod := deployment.Spec.Template.Spec
	apart := pod.Affinity.PodAntiAffinity
	if len(apart.RequiredDuringSchedulingIgnoredDuringExecution) > 0 || len(apart.PreferredDuringSchedulingIgnoredDuringExecution) != 1 {
		t.Errorf("%+v", apart)
	}
	for _, c := range pod.Containers {
		if len(c.Ports) > 0 { // the scheduler places no two pods with the same host port on a node
			t.Errorf("%s has ports: %+v", c.Name, c.Ports)
		}
	}
	if one := deployment.Spec.Strategy.RollingUpdate.MaxUnavailable.IntValue(); one != 1 {
		t.Errorf("an update takes %d replicas away at once, want 1", one)
	}
}

// TestCleanup_MountsNodeDirectories: the pod has the directories above Waggle's, and its manifest is printed only on request.
func TestCleanup_MountsNodeDirectories(t *testing.T) {
	t.Parallel()
	if objects(t, usual())["DaemonSet waggle-cleanup"] != nil {
		t.Error("the usual call removes everything")
	}
	o := usual("cleanup")
	o.Set = []string{"cni-log-file=/var/run/waggle/cni.log", "write-cni-conf-when-ready=/etc/other/05-waggle.conflist"}
	all := objects(t, o)
	pod := all["DaemonSet waggle-cleanup"].(*appsv1.DaemonSet).Spec.Template.Spec
	for _, c := range []corev1.Container{pod.InitContainers[0], pod.Containers[0]} {
		if got, want := mounts(pod, c), []string{"/var/run -> /host/var/run", "/var/lib -> /host/var/lib", "/sys/fs -> /host/sys/fs Bidirectional",
			"/opt/cni/bin -> /host/opt/cni/bin", "/etc/other -> /host/etc/other"}; !slices.Equal(got, want) {
			t.Errorf("%s mounts %q, want %q", c.Name, got, want)
		}
		if !slices.Contains(c.Args, "--cni-log-file=/host/var/run/waggle/cni.log") || !slices.Contains(c.Args, "--state-dir=/host/var/run/waggle") ||
			!slices.Contains(c.Args, "--write-cni-conf-when-ready=/host/etc/other/05-waggle.conflist") || !*c.SecurityContext.Privileged {
			t.Errorf("%s: %q", c.Name, c.Args)
		}
	}
	if len(all) != 1 || !pod.HostNetwork || *pod.AutomountServiceAccountToken {
		t.Errorf("%d objects, %+v", len(all), pod)
	}
	for file, want := range map[string]string{"/var/log/waggle/cni.log": "/var/log/waggle -> /host/var/log/waggle", "/opt/cni/bin/cni.log": "/etc/cni/net.d -> /host/etc/cni/net.d",
		"/cni.log": "/etc/cni/net.d -> /host/etc/cni/net.d"} {
		o := usual("cleanup")
		o.Set = []string{"cni-log-file=" + file}
		pod := objects(t, o)["DaemonSet waggle-cleanup"].(*appsv1.DaemonSet).Spec.Template.Spec
		if got := mounts(pod, pod.Containers[0]); got[len(got)-1] != want {
			t.Errorf("%s: mounts %q, want %q", file, got, want)
		}
	}
	if _, err := Render(usual("agent", "cleanup")); err == nil {
		t.Error("agent and cleanup were printed together")
	}
}

// TestDefaults_EqualAgentDefaults: an option that is not set has the agent's default.
func TestDefaults_EqualAgentDefaults(t *testing.T) {
	t.Parallel()
	for flag, want := range map[string]string{"agent-health-port": "9879", "agent-not-ready-taint-key": "node.cilium.io/agent-not-ready"} {
		if got := (Settings{}).value(flag); got != want {
			t.Errorf("%s is %q, want %q", flag, got, want)
		}
	}
}

// TestFixed_AreFlags: an option that is rejected with a reason must be a flag.
func TestFixed_AreFlags(t *testing.T) {
	t.Parallel()
	flags, err := AgentFlags()
	if err != nil {
		t.Fatal(err)
	}
	for name := range fixed {
		if flags.Lookup(name) == nil {
			t.Errorf("the agent has no flag --%s", name)
		}
	}
}
