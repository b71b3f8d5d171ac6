package nodefirewall

import "github.com/waggle-net/waggle/pkg/datapath/nftforward"

// kernel evaluates the nftables rules of the node.
type kernel interface {
	// Dropping returns the chains that drop one of the packets, and the number of chains and rules that were read.
	Dropping([]nftforward.Packet) (chains []nftforward.Chain, read int, err error)
}

type nftables struct{}

func newKernel() kernel { return nftables{} }

// Dropping implements kernel.
func (nftables) Dropping(packets []nftforward.Packet) (chains []nftforward.Chain, read int, err error) {
	return nftforward.Dropping(packets)
}
