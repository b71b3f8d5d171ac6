package endpoint

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/mac"
)

func TestParseRef(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]Ref{
		"7":                            {Kind: RefID, ID: 7},
		"cilium-local:65535":           {Kind: RefID, ID: 65535},
		"cni-attachment-id:abc:eth0":   {Kind: RefAttachment, Name: "abc:eth0"},
		"cni-attachment-id:abc":        {Kind: RefContainer, Name: "abc"},
		"container-id:a_b.c-d":         {Kind: RefContainer, Name: "a_b.c-d"},
		"pod-name:kube-system/dns-1":   {Kind: RefPod, Name: "kube-system/dns-1"},
		"pod-name:kube-system:dns-1":   {Kind: RefPod, Name: "kube-system/dns-1"},
		"cep-name:default/web.example": {Kind: RefPod, Name: "default/web.example"},
		"ipv4:10.0.0.1":                {Kind: RefAddress, Addr: netip.MustParseAddr("10.0.0.1")},
		"ipv6:fd00::1":                 {Kind: RefAddress, Addr: netip.MustParseAddr("fd00::1")},
	} {
		got, err := ParseRef(in)
		require.NoError(t, err, in)
		require.Equal(t, want, got, in)
	}
}

func TestParseRef_Rejects(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"", ":", "x", "-1", "65536", "cilium-local:", "cni-attachment-id:", "cni-attachment-id::eth0",
		"cni-attachment-id:abc:", "cni-attachment-id:abc:eth0:1", "cni-attachment-id:../x:eth0", "container-id:a/b",
		"pod-name:web", "pod-name:/web", "pod-name:a/b/c", "cep-name:a/\x1b[31m", "ipv4:fd00::1", "ipv6:10.0.0.1", "ipv4:x",
		"ipv6:::ffff:10.0.0.1", "ipv6:fe80::1%eth0", "docker-endpoint:x", "container-name:x", strings.Repeat("9", 10_000)} {
		_, err := ParseRef(in)
		require.ErrorIs(t, err, ErrInvalid, in)
		require.Less(t, len(err.Error()), 300, "the message is short")
		require.NotContains(t, err.Error(), "\x1b")
	}
	_, err := ParseRef("cilium-global:a:b:1")
	require.ErrorIs(t, err, ErrUnsupported)
}

func FuzzParseRef(f *testing.F) {
	for _, seed := range []string{"7", "cni-attachment-id:a:eth0", "pod-name:a/b", "ipv6:fd00::1", "cilium-global:x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ref, err := ParseRef(s)
		if err != nil {
			if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrUnsupported) {
				t.Fatalf("an error of no kind: %v", err)
			}
			return
		}
		switch ref.Kind {
		case RefAttachment:
			if strings.Count(ref.Name, ":") != 1 {
				t.Fatalf("attachment %q", ref.Name)
			}
		case RefPod:
			if strings.Count(ref.Name, "/") != 1 {
				t.Fatalf("pod %q", ref.Name)
			}
		case RefAddress:
			if !ref.Addr.IsValid() || ref.Addr.Is4In6() {
				t.Fatalf("address %s", ref.Addr)
			}
		}
	})
}

func good() Request {
	return Request{
		ContainerID: "abc", IfName: "eth0", NetnsPath: "/var/run/netns/x", HostIfName: "lxc0123456789ab", HostIfIndex: 12,
		HostMAC: mac.Addr{2, 0, 0, 0, 0, 1}, PodMAC: mac.Addr{2, 0, 0, 0, 0, 2}, IPv4: netip.MustParseAddr("10.0.0.5"),
		K8sNamespace: "default", K8sPodName: "web", Labels: []string{"container:app=web"},
	}
}

func TestValidate_NamesTheField(t *testing.T) {
	t.Parallel()
	ok := good()
	require.NoError(t, ok.Validate())
	long := strings.Repeat("x", 10_000)
	for name, c := range map[string]struct {
		change func(*Request)
		want   string
	}{
		"no container":          {func(r *Request) { r.ContainerID = "" }, "container-id"},
		"container is a path":   {func(r *Request) { r.ContainerID = "../etc" }, "container-id"},
		"container has colon":   {func(r *Request) { r.ContainerID = "a:b" }, "container-id"},
		"long container":        {func(r *Request) { r.ContainerID = long }, "container-id"},
		"interface slash":       {func(r *Request) { r.IfName = "a/b" }, "container-interface-name"},
		"interface space":       {func(r *Request) { r.IfName = "a b" }, "container-interface-name"},
		"interface control":     {func(r *Request) { r.IfName = "a\x1bb" }, "container-interface-name"},
		"interface of 16":       {func(r *Request) { r.HostIfName = long[:16] }, "interface-name"},
		"interface is dots":     {func(r *Request) { r.HostIfName = ".." }, "interface-name"},
		"no host index":         {func(r *Request) { r.HostIfIndex = 0 }, "interface-index"},
		"relative namespace":    {func(r *Request) { r.NetnsPath = "run/x" }, "netns path"},
		"long namespace":        {func(r *Request) { r.NetnsPath = "/" + long }, "netns path"},
		"namespace with escape": {func(r *Request) { r.NetnsPath = "/\x1b[2J" }, "netns path"},
		"no pod MAC":            {func(r *Request) { r.PodMAC = mac.Addr{} }, "mac"},
		"multicast MAC":         {func(r *Request) { r.HostMAC[0] = 3 }, "host-mac"},
		"no address":            {func(r *Request) { r.IPv4 = netip.Addr{} }, "addressing"},
		"swapped families":      {func(r *Request) { r.IPv4 = netip.MustParseAddr("fd00::1") }, "ipv4"},
		"mapped address":        {func(r *Request) { r.IPv6 = netip.MustParseAddr("::ffff:1.2.3.4") }, "ipv6"},
		"long zone":             {func(r *Request) { r.IPv6 = netip.MustParseAddr("fe80::1%" + long) }, "ipv6"},
		"loopback":              {func(r *Request) { r.IPv4 = netip.MustParseAddr("127.0.0.1") }, "addressing"},
		"bad pool":              {func(r *Request) { r.IPv4Pool = "a b" }, "ipv4-pool-name"},
		"namespace only":        {func(r *Request) { r.K8sPodName = "" }, "k8s-pod-name"},
		"pod with slash":        {func(r *Request) { r.K8sPodName = "a/b" }, "k8s-pod-name"},
		"long uid":              {func(r *Request) { r.K8sUID = long }, "k8s-uid"},
		"reserved label":        {func(r *Request) { r.Labels = []string{"reserved:host"} }, "labels"},
		"label of a CIDR":       {func(r *Request) { r.Labels = []string{"cidr:10.0.0.0/8"} }, "labels"},
		"label of a name":       {func(r *Request) { r.Labels = []string{"fqdn:example.com"} }, "labels"},
		"label without source":  {func(r *Request) { r.Labels = []string{"app=web"} }, "labels"},
		"label with semicolon":  {func(r *Request) { r.Labels = []string{"a:b=c;reserved:host="} }, "labels"},
		"label with newline":    {func(r *Request) { r.Labels = []string{"a:b=c\n"} }, "labels"},
		"label twice":           {func(r *Request) { r.Labels = []string{"a:b=c", "a:b=d"} }, "labels"},
		"long label":            {func(r *Request) { r.Labels = []string{"a:" + long} }, "labels"},
		"many labels":           {func(r *Request) { r.Labels = make([]string, 257) }, "labels"},
	} {
		r := good()
		c.change(&r)
		err := r.Validate()
		require.ErrorIs(t, err, ErrInvalid, name)
		require.ErrorContains(t, err, c.want, name)
		require.Less(t, len(err.Error()), 600, name)
		require.NotContains(t, err.Error(), "\x1b", name)
	}
}

// FuzzValidate checks that every name in a valid request can be stored, printed and used in paths of the API.
func FuzzValidate(f *testing.F) {
	f.Add("abc", "eth0", "/run/netns/x", "default", "web", "uid", "pool")
	f.Add("../../etc", "a:b", "\x1b[2J", "a/b", "..", "\x00", strings.Repeat("x", 10_000))
	f.Fuzz(func(t *testing.T, container, ifName, netns, namespace, pod, uid, pool string) {
		r := good()
		r.ContainerID, r.IfName, r.HostIfName, r.NetnsPath, r.IPv4UUID = container, ifName, ifName, netns, uid
		r.K8sNamespace, r.K8sPodName, r.K8sUID, r.IPv4Pool = namespace, pod, uid, pool
		if err := r.Validate(); err != nil {
			if !errors.Is(err, ErrInvalid) || len(err.Error()) > 3_000 || strings.ContainsFunc(err.Error(), unprintable) {
				t.Fatalf("error %q", err)
			}
			return
		}
		for _, name := range []string{container, ifName, namespace, pod, pool} {
			if strings.ContainsAny(name, "/: ") || name == "." || name == ".." || len(name) > 256 {
				t.Fatalf("accepted %q", name)
			}
		}
		if strings.ContainsFunc(container+ifName+netns+namespace+pod+uid+pool, unprintable) {
			t.Fatalf("accepted %+v", r)
		}
		if ref, err := ParseRef("cni-attachment-id:" + container + ":" + ifName); err != nil || ref.Name != container+":"+ifName {
			t.Fatalf("the accepted attachment cannot be looked up: %+v, %v", ref, err)
		}
	})
}

func unprintable(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }
