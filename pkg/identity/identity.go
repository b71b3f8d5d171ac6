// Package identity defines the fixed security identities. The numbers are Cilium's, for compatibility with its tools.
package identity

// Reserved identities.
const (
	Unknown    uint32 = 0
	Host       uint32 = 1
	World      uint32 = 2 // of both families, if only one is enabled
	Unmanaged  uint32 = 3
	Health     uint32 = 4
	Init       uint32 = 5 // an endpoint whose identity is not known yet
	RemoteNode uint32 = 6
	// KubeAPIServer is an address of another node on which an API server runs. An API server outside the cluster belongs to World.
	KubeAPIServer uint32 = 7
	WorldIPv4     uint32 = 9
	WorldIPv6     uint32 = 10
)

// WorldOf returns the identity of all addresses of a family without another identity. With one family enabled that is [World]; with both, each family has its
// own identity, as in Cilium.
func WorldOf(ipv6, dualStack bool) uint32 {
	switch {
	case !dualStack:
		return World
	case ipv6:
		return WorldIPv6
	}
	return WorldIPv4
}

// Name returns the name of a fixed identity without "reserved:"; empty for every other number.
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

// Labels returns the labels of a fixed identity. The API server has two, because it runs on a node.
func Labels(id uint32) map[string]string {
	labels := map[string]string{"reserved:" + Name(id): ""}
	if id == KubeAPIServer {
		labels["reserved:"+Name(RemoteNode)] = ""
	}
	return labels
}

// Ranges of numbers. The upper eight bits of a number are its scope, as in Cilium, which uses 0, 1 (a CIDR or a name) and 2 (a remote node); 3 is Waggle's.
const (
	ClusterMin uint32 = 256   // the lowest number of a cluster-wide identity
	ClusterMax uint32 = 65535 // the highest

	// ProvisionalScope is the scope of numbers that a node allocates while the cluster cannot allocate one. Such a number is unknown to other nodes.
	ProvisionalScope uint32 = 0x03000000
	// ProvisionalMax is the highest number of ProvisionalScope.
	ProvisionalMax = ProvisionalScope | 0xffffff
)

// IsProvisional reports whether a number is valid on this node only.
func IsProvisional(id uint32) bool { return id&0xff000000 == ProvisionalScope }

// Fixed lists the fixed identities in ascending order.
func Fixed() []uint32 {
	return []uint32{Unknown, Host, World, Unmanaged, Health, Init, RemoteNode, KubeAPIServer, WorldIPv4, WorldIPv6}
}
