// Package manifests reads files of objects in the format of "kubectl apply", and returns table rows. It is as strict as an API server, with one exception: it
// keeps a faulty network policy, because removing it would allow the traffic that it denies.
package manifests
