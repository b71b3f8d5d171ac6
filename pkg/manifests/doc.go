// Package manifests reads files of objects as people write them for "kubectl apply", and makes rows of them. It is as strict as an
// API server, with one difference: a network policy with a mistake in it is not left out, because that would open what it
// closes.
package manifests
