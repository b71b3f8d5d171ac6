// Package deviceobserver mirrors the kernel's links, addresses, routes and neighbours into tables, and determines which links lead
// out of the node.
//
// Tables in: none. Tables out: devices, device-addresses, routes, neighbors (observed, and complete after the first list). It owns nothing in the kernel and
// changes nothing there.
//
// The observer subscribes, lists, then applies notifications; after an overrun of a socket it starts again from the list.
// Notifications of different kinds arrive on different sockets, so an address may arrive before its link or after its deletion; rows
// are therefore keyed as in the kernel and joined by readers, and the observer deletes the addresses, routes and neighbours of a link
// with it. The kernel does not announce the deletion of IPv4 routes when their link goes down or their preferred source is
// removed: then the observer lists the routes again. A full list once a minute repairs remaining differences. After a restart everything is
// read again.
package deviceobserver
