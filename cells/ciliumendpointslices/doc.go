// Package ciliumendpointslices writes CiliumEndpointSlices (--enable-cilium-endpoint-slice): the pods of the cluster in objects of up to 100, so that agents need not
// follow one object for each pod.
//
// It runs in the cluster role, while this replica leads. It follows CiliumEndpoints and the slices that carry the label of Waggle, and owns the latter. A pod stays in the
// slice that it was first assigned to. Slices whose content differs from the desired content are written one after the other, within a rate limit. The objects are the only
// memory: a restarted or new leader begins with the existing slices. Once all pods of the beginning are in slices, the leader creates the slice [ciliumv2.CompleteSlice];
// without it agents read CiliumEndpoints. When the option is off, the leader deletes that slice at once and the others five minutes later.
package ciliumendpointslices
