package sockterm

import (
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/loadbalancer"
)

// Closed is the number of sockets of a protocol that were closed since the agent started.
type Closed struct {
	Protocol loadbalancer.Protocol `json:"protocol"`
	Sockets  uint64                `json:"sockets"`
}

// TableHeader implements statedb.TableWritable.
func (Closed) TableHeader() []string { return []string{"Protocol", "Sockets"} }

// TableRow implements statedb.TableWritable.
func (c Closed) TableRow() []string {
	return []string{c.Protocol.String(), strconv.FormatUint(c.Sockets, 10)}
}

var protocolIndex = statedb.Index[Closed, loadbalancer.Protocol]{
	Name:       "protocol",
	FromObject: func(c Closed) index.KeySet { return index.NewKeySet(protocolKey(c.Protocol)) },
	FromKey:    protocolKey,
	FromString: func(text string) (index.Key, error) {
		p, err := loadbalancer.ParseProtocol(text)
		return protocolKey(p), err
	},
	Unique: true,
}

func protocolKey(p loadbalancer.Protocol) index.Key { return index.Key{byte(p)} }

func newTable(db *statedb.DB) (statedb.RWTable[Closed], error) {
	return statedb.NewTable(db, "closed-sockets", protocolIndex)
}
