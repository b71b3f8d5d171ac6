package loader

import (
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/endpointfeed"
)

func (c *controller) subscribe() (endpointfeed.Feed, error) {
	return endpointfeed.Subscribe(c.DB, endpointfeed.Tables{
		Endpoints: c.Endpoints, Facts: c.Facts, Links: c.Links, Addresses: c.Addresses})
}

// everything marks all endpoints, and the endpoints of all attachments.
func (c *controller) everything(txn statedb.ReadTxn) endpointfeed.Marks {
	m := endpointfeed.Marks{}
	for ep := range c.Endpoints.All(txn) {
		m[ep.ID] = true
	}
	for row := range c.Table.All(txn) {
		m[row.EndpointID] = true
	}
	return m
}
