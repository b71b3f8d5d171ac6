// Package indexes makes the indexes of tables of statedb from a name, a kind of key, and a function that returns the key of a row:
//
//	var nameIndex = indexes.Unique("name", indexes.String, func(r *Row) string { return r.Name })
package indexes

import (
	"crypto/sha256"
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// Unique makes an index in which each row has a key of its own. The primary index of a table is unique.
func Unique[R, K any](name string, kind func() Kind[K], key func(R) K) statedb.Index[R, K] {
	i := Shared(name, kind, key)
	i.Unique = true
	return i
}

// Shared makes an index in which several rows may have the same key.
func Shared[R, K any](name string, kind func() Kind[K], key func(R) K) statedb.Index[R, K] {
	k := kind()
	return statedb.Index[R, K]{
		Name:       name,
		FromObject: func(row R) index.KeySet { return index.NewKeySet(k.Key(key(row))) },
		FromKey:    k.Key,
		FromString: k.FromString,
	}
}

// OmitZero omits the rows whose key is the zero value of its type from an index.
func OmitZero[R, K any](i statedb.Index[R, K]) statedb.Index[R, K] {
	var none K
	zero, all := i.FromKey(none), i.FromObject
	i.FromObject = func(row R) index.KeySet {
		if keys := all(row); !keys.First().Equal(zero) {
			return keys
		}
		return index.KeySet{}
	}
	return i
}

// Kind is a type of key. An index lists its rows in the order of the bytes that Key returns. FromString reads the key that a user types.
type Kind[K any] struct {
	Key        func(K) index.Key
	FromString func(text string) (index.Key, error)
}

// String is the kind of strings, ordered by their bytes.
func String[K ~string]() Kind[K] {
	return Kind[K]{func(text K) index.Key { return index.String(string(text)) }, index.FromString}
}

// Digest is the kind of long strings of which only equality matters: the key is half of the SHA-256 digest, so rows have no useful order, and prefixes of a
// string find nothing. A tree of keys of hundreds of bytes needs several times the memory.
func Digest() Kind[string] {
	digest := func(text string) index.Key {
		sum := sha256.Sum256([]byte(text))
		return sum[:sha256.Size/2]
	}
	return Kind[string]{digest, func(text string) (index.Key, error) { return digest(text), nil }}
}

// Bool is the kind of truth values, false before true.
func Bool() Kind[bool] { return Kind[bool]{index.Bool, index.BoolString} }

// Int is the kind of integers of 32 bits, such as the index of a link. Negative numbers follow the positive ones.
func Int() Kind[int] { return Kind[int]{index.Int, index.IntString} }

// Uint16 is the kind of numbers of 16 bits.
func Uint16() Kind[uint16] { return Kind[uint16]{index.Uint16, index.Uint16String} }

// Uint32 is the kind of numbers of 32 bits.
func Uint32() Kind[uint32] { return Kind[uint32]{index.Uint32, index.Uint32String} }

// Uint64 is the kind of numbers of 64 bits.
func Uint64() Kind[uint64] { return Kind[uint64]{index.Uint64, index.Uint64String} }

// Addr is the kind of IP addresses. An IPv4 address has the key of the IPv6 address that is mapped to it, and the invalid address has the key of "::".
func Addr() Kind[netip.Addr] { return Kind[netip.Addr]{index.NetIPAddr, index.NetIPAddrString} }

// Prefix is the kind of IP prefixes. Bits of the address beyond the length of the prefix do not count.
func Prefix() Kind[netip.Prefix] {
	return Kind[netip.Prefix]{index.NetIPPrefix, index.NetIPPrefixString}
}
