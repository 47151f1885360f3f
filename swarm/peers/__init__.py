"""What runs on a machine of the swarm: who serves bytes, who computes, who chats."""
