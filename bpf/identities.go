package bpf

// IdentityWords is the number of values of [MapKnownIdentities].
const IdentityWords = (1 << 16) / 64

// IdentityClasses is a value of [MapIdentityClasses]: the classes that entries of [PolicyClass] can name; 0: none. The key is an identity of the cluster.
type IdentityClasses = podEgressIdentityClasses

// IdentityBit returns the key of [MapKnownIdentities] whose value has the bit of an identity of the cluster (256 to 65535), and that bit.
func IdentityBit(identity uint32) (word uint32, bit uint64) {
	return identity / 64, 1 << (identity % 64)
}
