package events_test

import (
	"strconv"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
)

// enum reads a C enum from the BTF of each program, and checks that all programs have the same values.
func enum(t *testing.T, name string) map[string]uint64 {
	t.Helper()
	values := map[string]uint64{}
	for _, program := range bpf.Programs() {
		spec, err := bpf.Load(program)
		if err != nil {
			t.Fatal(err)
		}
		var e *btf.Enum
		if err := spec.Types.TypeByName(name, &e); err != nil {
			t.Fatalf("enum %s of %s: %v", name, program, err)
		}
		for _, v := range e.Values {
			if old, ok := values[v.Name]; ok && old != v.Value {
				t.Errorf("%s is %d in %s and %d elsewhere", v.Name, v.Value, program, old)
			}
			values[v.Name] = v.Value
		}
	}
	return values
}

func TestReason_EqualsC(t *testing.T) {
	t.Parallel()
	want := map[string]events.Reason{
		"REASON_FORWARDED": events.Forwarded, "REASON_SOURCE_MAC": events.SourceMAC,
		"REASON_DESTINATION_MAC": events.DestinationMAC, "REASON_SOURCE_IP": events.SourceIP,
		"REASON_POLICY": events.PolicyDenied, "REASON_MALFORMED": events.Malformed,
		"REASON_TRUNCATED": events.Truncated, "REASON_UNKNOWN_L3": events.UnknownL3, "REASON_MISSED_STEP": events.MissedStep,
		"REASON_WRITE": events.WriteFailed, "REASON_UNKNOWN_TARGET": events.UnknownTarget,
		"REASON_STALE_IP": events.StaleIP, "REASON_NO_ENDPOINT": events.NoEndpoint,
		"REASON_IPV6_EXTENSION": events.IPv6Extension, "REASON_UNSUPPORTED_L2": events.UnsupportedL2,
		"REASON_UNKNOWN_SENDER": events.UnknownSender, "REASON_FORBIDDEN_ICMPV6": events.ForbiddenICMPv6,
		"REASON_VLAN": events.VLANFilter, "REASON_MULTICAST": events.Multicast,
		"REASON_CONTROL_TRAFFIC": events.ControlTraffic, "REASON_NEIGHBOUR_TARGET": events.UnknownNeighbour,
		"REASON_CT_INSERT": events.FlowNotStored, "REASON_CT_UNKNOWN": events.UnknownFlow,
		"REASON_UNKNOWN_IDENTITY": events.UnknownIdentity, "REASON_FRAGMENT_UNKNOWN": events.UnknownFragment,
		"REASON_POLICY_DENY": events.PolicyDenyRule, "REASON_CT_FULL": events.FlowsFull, "REASON_CT_SHARE": events.FlowsShare,
		"REASON_NO_BACKEND": events.NoBackend, "REASON_SERVICE_PROTOCOL": events.ServiceProtocol,
		"REASON_NAT_NO_MAPPING": events.NoMapping, "REASON_TOO_BIG": events.TooBig, "REASON_NO_ROUTE": events.NoRoute, "REASON_CLUSTER_IP": events.ClusterIP,
		"REASON_SOURCE_RANGE": events.SourceRange, "REASON_HOPS": events.HopsRunOut, "REASON_NAT_FULL": events.NATFull, "REASON_NAT_SHARE": events.NATShare,
		"REASON_SERVICE_PORT": events.ServicePort, "REASON_INTERNAL": events.InternalError,
		"REASON_TUNNEL_KEY": events.TunnelKey, "REASON_NO_TUNNEL": events.NoTunnel, "REASON_ENCAPSULATED": events.Encapsulated,
		"REASON_NO_NODE": events.NoNode, "REASON_TUNNEL_SOURCE": events.TunnelSource, "REASON_VNI_DIFFERS": events.VNIDiffers,
	}
	got := enum(t, "drop_reason")
	for name, value := range got {
		reason, ok := want[name]
		if !ok || uint64(reason) != value {
			t.Errorf("%s is %d in C and %d in Go (known: %v)", name, value, reason, ok)
		}
		if reason.String() == strconv.Itoa(int(reason)) {
			t.Errorf("%s has no text", name)
		}
	}
	if len(got) != len(want) {
		t.Errorf("C has %d reasons, Go has %d", len(got), len(want))
	}
}

func TestFile_EqualsC(t *testing.T) {
	t.Parallel()
	want := map[string]events.File{
		"FILE_ARP": events.FileARP, "FILE_DELIVER": events.FileDeliver,
		"FILE_ETH": events.FileEth, "FILE_HOST_EGRESS": events.FileHostEgress, "FILE_IPV4": events.FileIPv4,
		"FILE_IPV6": events.FileIPv6, "FILE_ND": events.FileND, "FILE_POD_EGRESS": events.FilePodEgress,
		"FILE_POD_INGRESS": events.FilePodIngress, "FILE_POLICY": events.FilePolicy,
		"FILE_CONNTRACK": events.FileConntrack, "FILE_FRAGMENTS": events.FileFragments, "FILE_EVALUATE": events.FileEvaluate,
		"FILE_L4": events.FileL4, "FILE_RELATED": events.FileRelated, "FILE_TRACK": events.FileTrack,
		"FILE_NAT_CREATE": events.FileNATCreate, "FILE_NAT_REWRITE": events.FileNATRewrite, "FILE_NAT_ERROR": events.FileNATError, "FILE_DROP": events.FileDrop, "FILE_POD_STEPS": events.FilePodSteps,
		"FILE_OVERLAY": events.FileOverlay, "FILE_OVERLAY_INGRESS": events.FileOverlayIngress, "FILE_FORWARD": events.FileForward,
		"FILE_OVERLAY_INNER": events.FileOverlayInner, "FILE_TO_NODE": events.FileToNode, "FILE_DECAP": events.FileDecap, "FILE_PATH_SEND": events.FilePathSend,
		"FILE_NETDEV_INGRESS": events.FileNetdevIngress, "FILE_NETDEV_EGRESS": events.FileNetdevEgress, "FILE_SNAT": events.FileSNAT,
		"FILE_ROUTE": events.FileRoute, "FILE_POD_SERVICE": events.FilePodService,
	}
	got := enum(t, "source_file")
	for name, value := range got {
		file, ok := want[name]
		if !ok || uint64(file) != value {
			t.Errorf("%s is %d in C and %d in Go (known: %v)", name, value, file, ok)
		}
		if file.String() == strconv.Itoa(int(file)) {
			t.Errorf("%s has no name", name)
		}
	}
	if len(got) != len(want) {
		t.Errorf("C has %d files, Go has %d", len(got), len(want))
	}
}

func TestDirection_EqualsC(t *testing.T) {
	t.Parallel()
	got := enum(t, "direction")
	for name, want := range map[string]uint8{
		"DIRECTION_UNKNOWN": bpf.DirectionUnknown, "DIRECTION_INGRESS": bpf.DirectionIngress, "DIRECTION_EGRESS": bpf.DirectionEgress,
	} {
		if v, ok := got[name]; !ok || v != uint64(want) {
			t.Errorf("%s is %d in C (known: %v) and %d in Go", name, v, ok, want)
		}
	}
}

func TestReason_Texts(t *testing.T) {
	t.Parallel()
	for reason, want := range map[events.Reason]string{
		0: "Success", 130: "Invalid source mac", 133: "Policy denied", 176: "Forbidden ICMPv6 message",
		182: "VLAN traffic disallowed by VLAN filter", 204: "No Egress IP configured", 241: "Link housekeeping", 239: "239",
	} {
		if got := reason.String(); got != want {
			t.Errorf("reason %d: %q, want %q", uint8(reason), got, want)
		}
	}
}
