package nftguard

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
)

// Changes listens for changes of Waggle's table.
type Changes struct{ listener *rtnl.Listener }

// OpenChanges begins to listen in the network namespace of the calling thread.
func OpenChanges() (*Changes, error) {
	listener, err := rtnl.Listen("nftables", unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return nil, fmt.Errorf("%w%s", err, remedy(err))
	}
	return &Changes{listener}, nil
}

// Close closes the netlink socket.
func (c *Changes) Close() { c.listener.Close() }

// Next waits for a change of the table by any process, this one included, or for a loss of notifications. The end of ctx closes the listener.
func (c *Changes) Next(ctx context.Context) error {
	for {
		msgs, err := c.listener.Next(ctx)
		if errors.Is(err, rtnl.ErrLost) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, m := range msgs {
			if aboutOurs(m.Header.Type, m.Data) {
				return nil
			}
		}
	}
}

// sizeofNfgenmsg is the length of the header before the attributes: family, version and resource (struct nfgenmsg).
const sizeofNfgenmsg = 4

// aboutOurs reports whether a notification concerns the table. The first attribute type is the table's name, except in the notification that ends a
// transaction.
func aboutOurs(kind uint16, m []byte) bool {
	if len(m) < sizeofNfgenmsg || m[0] != unix.NFPROTO_INET || kind != unix.NFNL_SUBSYS_NFTABLES<<8|kind&0xff ||
		kind&0xff == unix.NFT_MSG_NEWGEN {
		return false
	}
	for b := m[sizeofNfgenmsg:]; len(b) >= unix.SizeofRtAttr; {
		length := int(nl.NativeEndian().Uint16(b))
		if length < unix.SizeofRtAttr || length > len(b) {
			return false
		}
		if nl.NativeEndian().Uint16(b[2:])&^unix.NLA_F_NESTED == unix.NFTA_TABLE_NAME {
			return string(bytes.TrimRight(b[unix.SizeofRtAttr:length], "\x00")) == TableName
		}
		b = b[min((length+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(b)):]
	}
	return false
}
