// Package ciliumendpointslices writes CiliumEndpointSlices (--enable-cilium-endpoint-slice): objects with up to 100 pods of the cluster (the default limit), so
// that agents need not follow one object for each pod.
//
// It runs in the cluster role while this replica leads. Table in: leadership. Tables out: none. It follows CiliumEndpoints and the slices with the label of
// Waggle, and owns these slices. A pod usually stays in its first slice. Slices whose content differs from the desired content are written one after the other,
// within a rate limit. The objects are the only persistent state: a restarted or new leader starts with the existing slices. Once all pods of the first lists
// are in slices, the leader creates the slice [ciliumv2.CompleteSlice]; without it agents read CiliumEndpoints. When the option is off, the leader deletes this
// slice at once and the others five minutes later.
package ciliumendpointslices
