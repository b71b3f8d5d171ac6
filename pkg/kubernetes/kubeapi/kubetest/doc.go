// Package kubetest is an in-memory API server for tests: real HTTP, real watches, no validation of objects. It behaves like kube-apiserver as far as a
// client can observe (resourceVersions, conflicts, the status subresource, expired versions, selectors), and fails on demand.
//
//	s := kubetest.New(t)
//	s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}})
//	client := s.Client(t)
//	...
//	s.Await(t, "the annotation is written", func() bool { ... s.Get(kubeapi.Nodes, "", "one", &node) ... })
//
// Several servers may share their objects ([Server.Replica]), as the API servers of a cluster do.
package kubetest
