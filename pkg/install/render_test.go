package install

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"github.com/waggle-net/waggle/pkg/kubernetes/crds"
)

var update = flag.Bool("update", false, "write what is compared instead of comparing it")

// usual returns typical options, with an image that is independent of the build.
func usual(only ...string) Options {
	return Options{Namespace: "kube-system", Image: "waggle.example/waggle:v1", CNIBinDir: "/opt/cni/bin", Only: only}
}

func mustRender(t *testing.T, o Options) []byte {
	t.Helper()
	text, err := Render(o)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestRender_Golden shows the effect of a template change on all objects except the custom resources, whose schemas are long.
func TestRender_Golden(t *testing.T) {
	t.Parallel()
	const file = "testdata/manifests.yaml"
	_, have, _ := bytes.Cut(mustRender(t, usual("rbac", "admission", "addresses", "config", "agent", "cluster")), []byte("\n")) // the version
	if *update {
		if err := os.WriteFile(file, have, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Errorf("%s is not what is printed; look at the difference of: go test ./pkg/install -update", file)
	}
}

func TestRender_IsStable(t *testing.T) {
	t.Parallel()
	first := mustRender(t, usual())
	for range 5 {
		if !bytes.Equal(first, mustRender(t, usual())) {
			t.Fatal("two calls print different manifests")
		}
	}
}

// objects decodes all manifests strictly into Kubernetes types, or into maps for the custom resources.
func objects(t *testing.T, o Options) map[string]any {
	t.Helper()
	items, err := documents(mustRender(t, o))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]any{}
	for _, item := range items {
		var head metav1.PartialObjectMetadata
		if err := json.Unmarshal(item, &head); err != nil {
			t.Fatal(err)
		}
		into := map[string]func() any{
			"v1/ServiceAccount":                        func() any { return new(corev1.ServiceAccount) },
			"v1/ConfigMap":                             func() any { return new(corev1.ConfigMap) },
			"apps/v1/DaemonSet":                        func() any { return new(appsv1.DaemonSet) },
			"apps/v1/Deployment":                       func() any { return new(appsv1.Deployment) },
			"rbac.authorization.k8s.io/v1/Role":        func() any { return new(rbacv1.Role) },
			"rbac.authorization.k8s.io/v1/RoleBinding": func() any { return new(rbacv1.RoleBinding) },
			"rbac.authorization.k8s.io/v1/ClusterRole": func() any { return new(rbacv1.ClusterRole) },
			"rbac.authorization.k8s.io/v1/ClusterRoleBinding": func() any {
				return new(rbacv1.ClusterRoleBinding)
			},
			"admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy": func() any {
				return new(admissionv1.ValidatingAdmissionPolicy)
			},
			"admissionregistration.k8s.io/v1/ValidatingAdmissionPolicyBinding": func() any {
				return new(admissionv1.ValidatingAdmissionPolicyBinding)
			},
			"apiextensions.k8s.io/v1/CustomResourceDefinition": func() any { return new(crds.Definition) },
		}[head.APIVersion+"/"+head.Kind]
		if into == nil {
			t.Fatalf("%s/%s %s: what is this?", head.APIVersion, head.Kind, head.Name)
		}
		object := into()
		if faults, err := kjson.UnmarshalStrict(item, object); err != nil || len(faults) > 0 {
			t.Errorf("%s %s: %v %v", head.Kind, head.Name, err, faults)
		}
		key := head.Kind + " " + head.Name
		if all[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		all[key] = object
	}
	return all
}

func TestRender_DecodesStrictly(t *testing.T) {
	t.Parallel()
	all := objects(t, usual())
	if len(all) != 7+2+6+8+2+1+2 {
		t.Errorf("%d objects", len(all))
	}
	for key, object := range all {
		metadata, ok := object.(metav1.Object)
		if !ok {
			continue // a custom resource, see package crds
		}
		if metadata.GetLabels()["app.kubernetes.io/managed-by"] != "waggle" {
			t.Errorf("%s does not say who manages it", key)
		}
	}
}

func TestRender_Namespace(t *testing.T) {
	t.Parallel()
	o := usual()
	o.Namespace = "net"
	for key, object := range objects(t, o) {
		metadata, ok := object.(metav1.Object)
		if ok && metadata.GetNamespace() != "" && metadata.GetNamespace() != "net" {
			t.Errorf("%s is in %s", key, metadata.GetNamespace())
		}
	}
	if text := string(mustRender(t, o)); strings.Contains(text, "kube-system") || !strings.Contains(text, "system:serviceaccount:net:waggle") {
		t.Error("the other namespace is named")
	}
}

func TestRender_OnlyAndJSON(t *testing.T) {
	t.Parallel()
	if all := objects(t, usual("crds")); len(all) != len(crds.All()) {
		t.Errorf("--only crds prints %d objects", len(all))
	}
	text, err := RenderJSON(usual())
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Kind  string
		Items []json.RawMessage
	}
	if err := json.Unmarshal(text, &list); err != nil || list.Kind != "List" || len(list.Items) != len(objects(t, usual())) {
		t.Errorf("%s of %d, %v", list.Kind, len(list.Items), err)
	}
}

func TestRender_Settings(t *testing.T) {
	t.Parallel()
	o := usual()
	o.Set = []string{"enable-ipv6=true", "debug=true", "write-cni-conf-when-ready=/var/lib/cni/x/05-waggle.conflist", "agent-health-port=0",
		"agent-not-ready-taint-key=a: b'\""}
	o.APIServer = "https://192.0.2.1:6443"
	all := objects(t, o)
	data := all["ConfigMap waggle-config"].(*corev1.ConfigMap).Data
	for key, want := range map[string]string{"enable-ipv6": "true", "debug": "true", "k8s-api-server": o.APIServer, "ipam": "kubernetes"} {
		if data[key] != want {
			t.Errorf("%s is %q, want %q", key, data[key], want)
		}
	}
	pod := all["DaemonSet waggle"].(*appsv1.DaemonSet).Spec.Template
	if c := pod.Spec.Containers[0]; c.LivenessProbe != nil || c.ReadinessProbe != nil || c.StartupProbe != nil {
		t.Error("probes use a port without a listener")
	}
	if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil && v.HostPath.Path == "/var/lib/cni/x" }) {
		t.Error("the folder of the CNI configuration is not mounted")
	}
	before := objects(t, usual())["DaemonSet waggle"].(*appsv1.DaemonSet).Spec.Template
	if before.Annotations["waggle.io/config"] == pod.Annotations["waggle.io/config"] {
		t.Error("other options leave the pods as they are")
	}
}

func TestRender_Rejects(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*Options)
		want   []string
	}{
		"unknown option": {func(o *Options) { o.Set = []string{"enable-ip4=true"} }, []string{`unknown option "--enable-ip4", the nearest known one is "--enable-ipv4"`}},
		"bad value":      {func(o *Options) { o.Set = []string{"debug=perhaps"} }, []string{`--debug: bad value "perhaps": want true or false`}},
		"no value":       {func(o *Options) { o.Set = []string{"debug"} }, []string{`--set "debug": want key=value`}},
		"all at once":    {func(o *Options) { o.Set = []string{"debug", "devce=x"} }, []string{"debug", "devce"}},
		"fixed option":   {func(o *Options) { o.Set = []string{"procfs=/x"} }, []string{"--set procfs: cannot be set here"}},
		"port range":     {func(o *Options) { o.Set = []string{"node-port-range=9,8"} }, []string{"--set: --node-port-range=9,8: want the first and the last"}},
		"no such ipam":   {func(o *Options) { o.Set = []string{"ipam=eni"} }, []string{`--set: --ipam="eni": use kubernetes or cluster-pool`}},
		"no family":      {func(o *Options) { o.Set = []string{"enable-ipv4=false"} }, []string{"enable at least one address family"}},
		"cluster name":   {func(o *Options) { o.Set = []string{"cluster-name=A_b"} }, []string{"--cluster-name"}},
		"CNI conf":       {func(o *Options) { o.Set = []string{"write-cni-conf-when-ready=05.conf"} }, []string{"an absolute path that ends in .conflist"}},
		"health port":    {func(o *Options) { o.Set = []string{"agent-health-port=70000"} }, []string{"use 1 to 65535"}},
		"namespace":      {func(o *Options) { o.Namespace = "A b" }, []string{`--namespace "A b"`}},
		"image":          {func(o *Options) { o.Image = "a\nb: c" }, []string{"--image"}},
		"bin dir":        {func(o *Options) { o.CNIBinDir = "cni" }, []string{`--cni-bin-dir "cni": must be an absolute path`}},
		"part":           {func(o *Options) { o.Only = []string{"crd"} }, []string{`--only "crd": use crds, rbac`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := usual()
			c.change(&o)
			_, err := Render(o)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
		})
	}
}

// TestRender_AgentsWriteNoRangesOfAPool: only the cluster role allocates pod CIDRs from a pool; with --ipam=kubernetes agents write the ones of their
// Nodes.
func TestRender_AgentsWriteNoRangesOfAPool(t *testing.T) {
	t.Parallel()
	for ipam, want := range map[string]int{"kubernetes": 1, "cluster-pool": 2} {
		o := usual("admission")
		o.Set = []string{"ipam=" + ipam}
		policy := objects(t, o)["ValidatingAdmissionPolicy waggle-own-ranges"].(*admissionv1.ValidatingAdmissionPolicy)
		if got := len(policy.Spec.Validations); got != want {
			t.Errorf("--ipam=%s: %d validations, want %d", ipam, got, want)
		}
	}
}

// TestRender_AgentsWriteNoForeignAddresses: router and health addresses that an agent writes are compared with the pod CIDRs of the object. The policy is a part of
// its own, because Kubernetes 1.30 rejects its functions; it accepts all other parts.
func TestRender_AgentsWriteNoForeignAddresses(t *testing.T) {
	t.Parallel()
	for _, ipam := range []string{"kubernetes", "cluster-pool"} {
		o := usual("addresses")
		o.Namespace, o.Set = "net", []string{"ipam=" + ipam}
		all := objects(t, o)
		policy := all["ValidatingAdmissionPolicy waggle-own-addresses"].(*admissionv1.ValidatingAdmissionPolicy)
		binding := all["ValidatingAdmissionPolicyBinding waggle-own-addresses"].(*admissionv1.ValidatingAdmissionPolicyBinding)
		rule := policy.Spec.MatchConstraints.ResourceRules[0]
		if len(all) != 2 || binding.Spec.PolicyName != policy.Name || !slices.Equal(binding.Spec.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny}) {
			t.Errorf("--ipam=%s: %d objects, %+v", ipam, len(all), binding.Spec)
		}
		if !slices.Equal(rule.Resources, []string{"ciliumnodes"}) || !slices.Equal(rule.Operations, []admissionv1.OperationType{admissionv1.Create, admissionv1.Update}) ||
			policy.Spec.MatchConditions[0].Expression != "request.userInfo.username == 'system:serviceaccount:net:waggle'" {
			t.Errorf("--ipam=%s: %+v, %+v", ipam, rule, policy.Spec.MatchConditions)
		}
		var claims, validation string
		for _, v := range policy.Spec.Variables {
			if v.Name == "claims" {
				claims = v.Expression
			}
		}
		for _, field := range []string{"addresses", "'CiliumInternalIP'", "health.?ipv4", "health.?ipv6"} {
			if !strings.Contains(claims, field) {
				t.Errorf("%s is not compared: %s", field, claims)
			}
		}
		if validation = policy.Spec.Validations[0].Expression; len(policy.Spec.Validations) != 1 || !strings.Contains(validation, "cidr(r).containsIP(a)") {
			t.Errorf("--ipam=%s: %s", ipam, validation)
		}
	}
	var others []string
	for _, part := range Parts() {
		if part != "addresses" && part != cleanupPart {
			others = append(others, part)
		}
	}
	for _, function := range []string{"cidr(", "isCIDR(", "isIP(", "ip("} {
		if strings.Contains(string(mustRender(t, usual(others...))), function) {
			t.Errorf("Kubernetes 1.30 does not know %s", function)
		}
	}
}

func TestRender_ClusterRole_HasHigherRateLimit(t *testing.T) {
	t.Parallel()
	if text := string(mustRender(t, usual("cluster"))); !strings.Contains(text, "--k8s-client-qps=100") || !strings.Contains(text, "--k8s-client-burst=200") {
		t.Error("the cluster role has the limits of an agent")
	}
	o := usual("cluster")
	o.Set = []string{"k8s-client-qps=7"}
	if text := string(mustRender(t, o)); strings.Contains(text, "--k8s-client-qps") {
		t.Error("a limit that the user has set is overridden")
	}
}
