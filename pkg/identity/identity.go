// Package identity names the security identities that are fixed. The numbers are Cilium's, so that tools agree.
package identity

// Reserved identities.
const (
	Unknown    uint32 = 0
	Host       uint32 = 1
	World      uint32 = 2 // of both families, when only one is enabled
	Unmanaged  uint32 = 3
	Health     uint32 = 4
	Init       uint32 = 5 // an endpoint whose identity is not known yet
	RemoteNode uint32 = 6
	// KubeAPIServer is an address of another node on which an API server runs. One outside the cluster is the world's.
	KubeAPIServer uint32 = 7
	WorldIPv4     uint32 = 9
	WorldIPv6     uint32 = 10
)

// WorldOf returns the identity of "everything else" in a family. With one family enabled that is [World], with both
// each has its own, as in Cilium.
func WorldOf(ipv6, dualStack bool) uint32 {
	switch {
	case !dualStack:
		return World
	case ipv6:
		return WorldIPv6
	}
	return WorldIPv4
}

// Name is the name of a fixed identity behind "reserved:"; empty for every other number.
func Name(id uint32) string {
	switch id {
	case Unknown:
		return "unknown"
	case Host:
		return "host"
	case World:
		return "world"
	case Unmanaged:
		return "unmanaged"
	case Health:
		return "health"
	case Init:
		return "init"
	case RemoteNode:
		return "remote-node"
	case KubeAPIServer:
		return "kube-apiserver"
	case WorldIPv4:
		return "world-ipv4"
	case WorldIPv6:
		return "world-ipv6"
	}
	return ""
}

// Labels are those of a fixed identity. That of the API server has two, for it is also a node's.
func Labels(id uint32) map[string]string {
	labels := map[string]string{"reserved:" + Name(id): ""}
	if id == KubeAPIServer {
		labels["reserved:"+Name(RemoteNode)] = ""
	}
	return labels
}

// Ranges of numbers. The upper eight bits of a number are its scope, as in Cilium, which uses 0, 1 (a CIDR or a name) and
// 2 (a remote node); 3 is ours.
const (
	ClusterMin uint32 = 256   // the lowest number that stands for labels in the whole cluster
	ClusterMax uint32 = 65535 // the highest

	// ProvisionalScope is the scope of numbers that a node gives while it cannot get one from the cluster. They mean
	// nothing to any other node.
	ProvisionalScope uint32 = 0x03000000
	// ProvisionalMax is the highest number of that scope.
	ProvisionalMax = ProvisionalScope | 0xffffff
)

// IsProvisional tells whether a number means something to this node alone.
func IsProvisional(id uint32) bool { return id&0xff000000 == ProvisionalScope }

// Fixed lists the fixed identities, in their order.
func Fixed() []uint32 {
	return []uint32{Unknown, Host, World, Unmanaged, Health, Init, RemoteNode, KubeAPIServer, WorldIPv4, WorldIPv6}
}
