package nftguard

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Changes listens for changes of our table.
type Changes struct{ socket *nl.NetlinkSocket }

// OpenChanges begins to listen in the network namespace of the calling thread.
func OpenChanges() (*Changes, error) {
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return nil, fmt.Errorf("listen for changes of nftables: %w%s", err, remedy(err))
	}
	return &Changes{socket}, nil
}

// Close ends the listening.
func (c *Changes) Close() { c.socket.Close() }

// Next waits until somebody, this process included, has changed our table or announcements were lost. When ctx ends the
// socket is closed as well.
func (c *Changes) Next(ctx context.Context) error {
	defer context.AfterFunc(ctx, c.socket.Close)()
	for {
		msgs, _, err := c.socket.Receive()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS):
			return nil
		case err != nil:
			return fmt.Errorf("read changes of nftables: %w", err)
		}
		for _, m := range msgs {
			if aboutOurs(m.Header.Type, m.Data) {
				return nil
			}
		}
	}
}

// sizeofNfgenmsg is the length of what stands before the attributes: family, version and resource.
const sizeofNfgenmsg = 4

// aboutOurs tells whether an announcement is about our table. In all but the one that ends a transaction the first kind
// of attribute is the table's name.
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
