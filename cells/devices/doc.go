// Package devices mirrors the kernel's links, addresses, routes and neighbours into tables, and judges which links lead
// out of the node.
//
// Tables in: none. Tables out: devices, device-addresses, routes, neighbors, all observed and complete once the first
// list was read. It owns nothing in the kernel and changes nothing there.
//
// The observer subscribes, lists, then applies announcements; when a socket is overrun it begins again from the list.
// Announcements of different kinds come by different sockets, so an address may precede its link or outlive it; rows
// are therefore keyed as the kernel does and joined by readers, and what a link takes along when it goes is deleted
// with it. The kernel drops IPv4 routes of a link that goes down, and those whose preferred source goes, without a
// word: then the routes are listed again. A full list once a minute repairs what remains. After a restart everything is
// read afresh.
package devices
